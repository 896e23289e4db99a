"""Whether the reads of one request were confirmed. The answer tells its age."""

from __future__ import annotations

from contextvars import ContextVar


class ReadMark:
    __slots__ = ("is_confirmed", "is_stale")

    def __init__(self) -> None:
        self.is_confirmed = False
        self.is_stale = False

    @property
    def is_fresh(self) -> bool:
        return self.is_confirmed and not self.is_stale


CURRENT: ContextVar[ReadMark | None] = ContextVar("read_mark", default=None)


def mark_read(*, is_stale: bool) -> None:
    mark = CURRENT.get()
    if mark is not None:
        mark.is_confirmed = True
        mark.is_stale = mark.is_stale or is_stale
