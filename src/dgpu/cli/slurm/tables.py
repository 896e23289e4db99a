"""Tables in the formats of Slurm: `%.18i %.9P`, or names of columns. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from dgpu.cli.failures import CliFailure

T = TypeVar("T")
_CODE = re.compile(r"%(\.?)(\d*)([A-Za-z])")


class Cell(NamedTuple):
    """`%.18i`: 18 characters, to the right. Width 0: as wide as its text."""

    before: str
    code: str
    width: int
    right: bool


class Field(NamedTuple):
    title: str
    text: Callable[[object], str]


def parse_format(text: str, known: Iterable[str], command: str) -> list[Cell]:
    names = set(known)
    cells: list[Cell] = []
    place = 0
    for match in _CODE.finditer(text):
        if match[3] not in names:
            raise CliFailure(
                f"{match[0]} of the format is not supported; {command} knows {' '.join(sorted(names))}"
            )
        cells.append(Cell(text[place : match.start()], match[3], int(match[2] or 0), bool(match[1])))
        place = match.end()
    return cells


def lines(
    cells: Sequence[Cell],
    fields: Mapping[str, tuple[str, Callable[[T], str]]],
    rows: Iterable[T],
    *,
    header: bool,
) -> Iterable[str]:
    if header:
        yield _line(cells, [fields[cell.code][0] for cell in cells])
    for row in rows:
        yield _line(cells, [fields[cell.code][1](row) for cell in cells])


def _line(cells: Sequence[Cell], texts: Sequence[str]) -> str:
    return "".join(_cell(cell, text) for cell, text in zip(cells, texts, strict=True)).rstrip()


def _cell(cell: Cell, text: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in text)
    if cell.width:
        shown = shown[: cell.width].rjust(cell.width) if cell.right else shown[: cell.width].ljust(cell.width)
    return cell.before + shown
