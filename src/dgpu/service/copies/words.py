"""Messages between schedulers about copies of output. Both ends are this program, so they are MessagePack."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.service.task_output.byte_ranges import Range

SERVICE = "dgpu.scheduler.v1.Copies"
MAX_MESSAGE_BYTES = 16 << 20

RunKey = tuple[TaskId, int]  # task, wire.ranks.run_number


class OfferedRun(msgspec.Struct, frozen=True, array_like=True):
    """The output of one ended run, as a scheduler has it."""

    task_id: TaskId
    attempt: int  # wire.ranks.run_number
    lease_id: LeaseId
    end: int  # bytes that the run wrote in total
    ranges: tuple[Range, ...]  # of the bytes that the scheduler has


class WantedRun(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of an offered run that a scheduler lacks."""

    task_id: TaskId
    attempt: int
    lease_id: LeaseId
    ranges: tuple[Range, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A part of output in the format of packs, and its SHA-256."""

    content: bytes
    sha256: bytes


class FreshAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A standby asks for runs that were stored since its last question."""

    name: str
    after: int  # FreshRuns.seen of the last answer; -1: nothing yet, only tell the present number
    held: tuple[LeaseId, ...] = ()  # runs that are durable at the standby since its last question
    is_whole: bool = False  # it has everything that the master had at some time of this connection
    wait_ms: int = 0  # for a run, if there is none


class FreshRuns(msgspec.Struct, frozen=True, kw_only=True):
    seen: int
    runs: tuple[OfferedRun, ...] = ()
    is_gap: bool = False  # runs since the question's number are forgotten: compare everything again


class PageAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Runs before this one, latest first."""

    before: RunKey


class Page(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[OfferedRun, ...] = ()
    before: RunKey | None = None  # of the next page; None: there is none


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[WantedRun, ...] = ()


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """As many of the wanted parts as fit in one message."""

    entries: tuple[Entry, ...] = ()


class OwnPage(msgspec.Struct, frozen=True, kw_only=True):
    """A standby offers its own runs to the master."""

    name: str
    runs: tuple[OfferedRun, ...] = ()
    is_last: bool = False  # the master has seen all of them now


class Done(msgspec.Struct, frozen=True, kw_only=True):
    pass
