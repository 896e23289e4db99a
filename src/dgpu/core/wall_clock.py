"""Journals the wall clock: at the start of a scheduler, and when the clock was set. See wall_span."""

from __future__ import annotations

from typing import Final

from dgpu.core.commands import ReadWallClock
from dgpu.core.decision import Decision
from dgpu.core.events import WallClockRead
from dgpu.core.model.wall_span import WallSpan, newest_span
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
