"""Output of a task on a terminal. Its writer may be another user: it must not change the title, the screen or the
settings of the reader's terminal. Colours and the signs of progress bars pass. Standard library only.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable

from dgpu.cli.following import write_output

# First group: colours, and the erasing of a line. Then: control characters other than backspace, tab, line feed and
# carriage return, and characters that change the direction of text.
_SIGNS = re.compile(
    r"(\x1b\[[0-9;:]{0,32}[mK])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,32})?\Z")


class HarmlessText:
    """Pieces may end anywhere: an unfinished sequence waits for the next piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def feed(self, piece: bytes) -> bytes:
        text = self._begun + self._decoder.decode(piece)
        begun = _BEGUN.search(text)
        self._begun = begun.group() if begun is not None else ""
        whole = text.removesuffix(self._begun) if self._begun else text
        return _SIGNS.sub(lambda found: found[1] or "?", whole).encode()


def output_writer(*, raw: bool) -> Callable[[bytes], None]:
    """In a pipe or a file, output is what the task wrote."""
    if raw or not sys.stdout.isatty():
        return write_output
    text = HarmlessText()
    return lambda piece: write_output(text.feed(piece))
