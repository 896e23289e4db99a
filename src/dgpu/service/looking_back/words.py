"""Messages between the scheduler and a process that looks back."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import TaskId
from dgpu.wire.foresight_answers import Why


class LookBack(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    at: int
    upto_index: int  # later groups are not committed
    tenants: tuple[str, ...] | None = None  # of the reader; None: all. The answer names no others


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One of the three."""

    why: Why | None = None
    earliest_at: int | None = None  # the journal is kept from this time on
    error: str = ""
