"""Journals the wall clock: at the start of a scheduler, and when the clock was set. See wall_span."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import ReadWallClock
from dgpu.core.decision import Decision
from dgpu.core.events import WallClockRead
from dgpu.core.model.task import TaskStatus
from dgpu.core.model.wall_span import WallSpan, at_of_wall, newest_span
from dgpu.core.state import ClusterState

MAX_SPANS: Final = 64
MIN_STEP_MS: Final = 500  # smaller differences come from reading two clocks


def decide_wall_clock(state: ClusterState, command: ReadWallClock) -> Decision:
    known, span = newest_span(state.wall), command.span
    if not differs(known, span):
        return ()
    since = max(state.wall) if goes_on(known, span) else command.at
    return (WallClockRead(at=command.at, since=since, span=span),)


def differs(known: WallSpan | None, span: WallSpan) -> bool:
    if known is None or not goes_on(known, span):
        return True
    return abs(known.wall_offset_ms - span.wall_offset_ms) >= MIN_STEP_MS


def goes_on(known: WallSpan | None, span: WallSpan | None) -> bool:
    """The same boot, counted without a gap."""
    if known is None or span is None:
        return False
    return known.boot_id == span.boot_id and known.boot_offset_ms == span.boot_offset_ms


def apply_wall_clock(state: ClusterState, event: WallClockRead) -> None:
    state.wall[event.since] = event.span
    if len(state.wall) > MAX_SPANS:
        del state.wall[min(state.wall)]
    _follow_wall_clock(state, event.at)


def _follow_wall_clock(state: ClusterState, at: int) -> None:
    """Begin times are of the wall clock, so they move on the journal's clock. Rare: at a start, or a set clock."""
    for task in list(state.tasks.values()):
        # A task whose time has come may be in its line already. It stays there.
        if (
            not task.begins_ms
            or task.attempt
            or task.eligible_at <= at
            or task.status is not TaskStatus.PENDING
        ):
            continue
        eligible_at = at_of_wall(state.wall, task.begins_ms)
        if eligible_at != task.eligible_at:
            state.tasks[task.id] = replace(task, eligible_at=eligible_at)
            state.queue.delay_until(task.id, eligible_at)
