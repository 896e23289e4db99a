"""The stored bytes of a run, so that no byte is stored twice and none is left out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dgpu.service.task_output.byte_ranges import Range, merged, uncovered
from dgpu.service.task_output.pack import OutputPart


class Coverage:
    """Covers one run under one lease. `end`: the total size of the run's output, from its last part; None: unknown."""

    __slots__ = ("_end", "_ranges")

    def __init__(self, ranges: Iterable[Range] = (), end: int | None = None) -> None:
        self._ranges = merged(ranges)
        self._end = end

    def take(self, part: OutputPart) -> list[OutputPart]:
        """The pieces of a part that are not covered yet. They count as covered from now on.

        A part may fill a gap even after the last part: a scheduler with a higher limit asks for more, and the node
        deletes its files when it has sent all of them.
        """
        behind = part.offset + len(part.content)
        until = behind if self._end is None else min(behind, self._end)
        pieces = [
            msgspec.structs.replace(
                part, offset=begin, content=part.content[begin - part.offset : to - part.offset], end=-1
            )
            for begin, to in uncovered(self._ranges, part.offset, until)
        ]
        if part.is_last and self._end is None:
            _tell_end(pieces, part)
            self._end = part.end
        self._ranges = merged([*self._ranges, *((piece.offset, _behind(piece)) for piece in pieces)])
        return pieces


def _tell_end(pieces: list[OutputPart], last: OutputPart) -> None:
    if pieces and _behind(pieces[-1]) == _behind(last):
        pieces[-1] = msgspec.structs.replace(pieces[-1], end=last.end)
    else:
        # At the very end: the index has one row per offset, and a part may still fill a gap at any other offset.
        pieces.append(msgspec.structs.replace(last, offset=last.end, content=b""))


def _behind(part: OutputPart) -> int:
    return part.offset + len(part.content)
