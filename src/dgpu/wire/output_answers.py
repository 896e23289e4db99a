"""The answer about where the output of an attempt is."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class ByteRange(Answer, frozen=True, kw_only=True):
    begin: int
    end: int  # the first byte behind it


class OutputAnswer(Answer, frozen=True, kw_only=True):
    task_id: str
    attempt: int  # 0: none has begun
    rank: int = 0
    bytes: int | None = None  # written in all; None: it is not over, or has not arrived
    stored: tuple[ByteRange, ...] = ()  # at the scheduler
    missing: tuple[ByteRange, ...] = ()  # not at the scheduler
    node: str | None = None  # of the attempt, as far as it is known
    node_connected: bool = False
    kept_until: str | None = (
        None  # the node has all of it, until then at most; None: it has no more than the scheduler
    )
