"""The response about the places of an attempt's output."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class ByteRange(Answer, frozen=True, kw_only=True):
    begin: int
    end: int  # the first byte after it


class OutputAnswer(Answer, frozen=True, kw_only=True):
    task_id: str
    attempt: int  # 0: none has started
    rank: int = 0
    bytes: int | None = None  # written in total; None: it has not ended or not arrived
    stored: tuple[ByteRange, ...] = ()  # at the scheduler
    missing: tuple[ByteRange, ...] = ()  # not at the scheduler
    node: str | None = None  # of the attempt, if known
    node_connected: bool = False
    kept_until: str | None = (
        None  # the node has the whole output until then; None: it has no more than the scheduler
    )
