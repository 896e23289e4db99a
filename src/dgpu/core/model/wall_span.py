"""How the time of the journal relates to the wall clock.

`at` counts milliseconds that have passed. It never goes back and never jumps, so every order and every duration is
measured on it. The wall clock may be wrong, and may be set at any time. Only its difference from `at` is kept: one for
each boot of the scheduler's machine, because `at` counts without a gap during a boot. When the wall clock is set right,
the shown times of the whole boot become right with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class WallSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One boot. A span ends where the next one begins."""

    boot_id: str
    boot_offset_ms: int  # `at` minus the time since boot
    wall_offset_ms: int  # the wall clock minus `at`


def at_of_wall(spans: Mapping[int, WallSpan], wall_ms: int) -> int:
    """The `at` that the newest span shows as this time of the wall clock; at least 1."""
    span = newest_span(spans)
    return max(1, wall_ms - (0 if span is None else span.wall_offset_ms))


def newest_span(spans: Mapping[int, WallSpan]) -> WallSpan | None:
    """Spans are stored by the `at` at which each began."""
    return spans[max(spans)] if spans else None
