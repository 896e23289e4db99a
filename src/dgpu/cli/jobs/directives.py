"""The directives of a script: text in, options with their lines and columns out. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SLURM = "#SBATCH"
OWN = "#DGPU"
_KINDS = (SLURM, OWN)
MAX_ERRORS = 20


class Fault(NamedTuple):
    """`line` and `column` count from 1. Line 0: an option of the command line."""

    line: int
    column: int
    message: str


class JobFileError(Exception):
    """Every fault of a job file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = sorted(faults)[:MAX_ERRORS]
        super().__init__("; ".join(f"{fault.line}:{fault.column}: {fault.message}" for fault in self.faults))

    def lines(self, path: str) -> list[str]:
        return [
            f"{path}:{fault.line}:{fault.column}: {fault.message}" if fault.line else fault.message
            for fault in self.faults
        ]


class Word(NamedTuple):
    text: str
    column: int


class DirectiveLine(NamedTuple):
    kind: str
    line: int
    words: tuple[Word, ...]


class Given(NamedTuple):
    """An option with its value. `value` is None for an option without one."""

    name: str  # the long name without dashes
    written: str  # as in the file
    value: str | None
    line: int
    column: int
    value_column: int

    def fault(self, message: str) -> Fault:
        """A fault of the option."""
        return Fault(self.line, self.column, f"{self.written}: {message}")

    def value_fault(self, message: str) -> Fault:
        return Fault(self.line, self.value_column, f"{self.written}: {message}")


class Takes(NamedTuple):
    """Whether an option has a value. `optional`: only in the form --name=value."""

    value: bool
    optional: bool = False


def directive_lines(text: str) -> list[DirectiveLine]:
    """As Slurm reads them: in the comments before the first command. Raises JobFileError."""
    found: list[DirectiveLine] = []
    faults: list[Fault] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            break
        kind = _kind_of(line)
        if kind:
            try:
                found.append(DirectiveLine(kind, number, tuple(_words(line, len(kind)))))
            except _OpenQuoteError as error:
                faults.append(Fault(number, error.column, "this quote is not closed"))
    if faults:
        raise JobFileError(faults)
    return found


def late_lines(text: str) -> list[int]:
    """Lines of directives after the first command. They have no effect."""
    lines = enumerate(text.split("\n"), start=1)
    for _, line in lines:
        if line.strip() and not line.startswith("#"):
            break
    return [number for number, line in lines if _kind_of(line)]


def _kind_of(line: str) -> str:
    """`##SBATCH` and `# SBATCH` are comments."""
    return next((kind for kind in _KINDS if line == kind or line.startswith((f"{kind} ", f"{kind}\t"))), "")


class _OpenQuoteError(Exception):
    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


def _words(line: str, start: int) -> Iterator[Word]:
    """Words in single or double quotes may contain spaces. A word that begins with # begins a comment."""
    place = start
    while True:
        while place < len(line) and line[place].isspace():
            place += 1
        if place >= len(line) or line[place] == "#":
            return
        first = place
        text, place = _word(line, place)
        yield Word(text, first + 1)


def _word(line: str, place: int) -> tuple[str, int]:
    parts: list[str] = []
    while place < len(line) and not line[place].isspace():
        character = line[place]
        if character in "'\"":
            end = line.find(character, place + 1)
            if end < 0:
                raise _OpenQuoteError(place + 1)
            parts.append(line[place + 1 : end])
            place = end + 1
        elif character == "\\" and place + 1 < len(line):
            parts.append(line[place + 1])
            place += 2
        else:
            parts.append(character)
            place += 1
    return "".join(parts), place


class Options:
    """The options that a kind of directive knows. `short` and `others` map letters and other names to long names."""

    def __init__(
        self, takes: Mapping[str, Takes], short: Mapping[str, str], others: Mapping[str, str] | None = None
    ) -> None:
        self._takes = takes
        self._short = short
        self._others = others or {}

    def read(self, lines: Iterable[DirectiveLine]) -> tuple[list[Given], list[Fault]]:
        given: list[Given] = []
        faults: list[Fault] = []
        for line in lines:
            words = list(line.words)
            while words:
                found = self._next(line.line, words)
                (given if isinstance(found, Given) else faults).append(found)  # type: ignore[arg-type]
                if isinstance(found, Fault):
                    break
        return given, faults

    def read_arguments(self, arguments: Iterable[str]) -> tuple[list[Given], list[str], list[Fault]]:
        """The options of a command line, and the words from the first other one on. `--` ends the options."""
        words = [Word(text, number) for number, text in enumerate(arguments, start=1)]
        given: list[Given] = []
        while words and words[0].text.startswith("-") and words[0].text not in {"-", "--"}:
            found = self._next(0, words)
            if isinstance(found, Fault):
                return given, [], [found]
            given.append(found)
        if words and words[0].text == "--":
            words.pop(0)
        return given, [word.text for word in words], []

    def _next(self, line: int, words: list[Word]) -> Given | Fault:
        word = words.pop(0)
        if not word.text.startswith("-") or word.text in {"-", "--"}:
            return Fault(line, word.column, f"{word.text!r} is not an option; options begin with -")
        if word.text.startswith("--"):
            written, equals, value = word.text.partition("=")
            name = self._long(written.removeprefix("--"))
            attached = value if equals else None
            offset = len(written) + 1
        else:
            written, attached = word.text[:2], word.text[2:] or None
            name, offset = self._short.get(written[1]), 2
        if name is None:
            return Fault(line, word.column, f"{written} is not known{self._hint(written)}")
        takes = self._takes[name]
        if attached is None and takes.value and not takes.optional:
            if not words:
                return Fault(line, word.column, f"{written} needs a value")
            value_word = words.pop(0)
            return Given(name, written, value_word.text, line, word.column, value_word.column)
        if attached is not None and not takes.value:
            return Fault(line, word.column, f"{written} takes no value, got {attached!r}")
        return Given(name, written, attached, line, word.column, word.column + offset)

    def _long(self, name: str) -> str | None:
        """The option with this name, or the only one that begins with it."""
        name = self._others.get(name, name)
        if name in self._takes:
            return name
        similar = [each for each in self._takes if each.startswith(name)]
        return similar[0] if len(similar) == 1 and name else None

    def _hint(self, written: str) -> str:
        close = difflib.get_close_matches(written.removeprefix("--"), self._takes, n=1)
        return f". Did you mean --{close[0]}?" if close and written.startswith("--") else ""
