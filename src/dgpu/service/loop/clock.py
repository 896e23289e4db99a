"""Time for commands, counted on CLOCK_BOOTTIME: it never goes back, never jumps and includes suspends.

A new scheduler on the same boot continues the count exactly. After a reboot, only the wall clock knows how long the
machine was off, and it may be wrong: at most MAX_GAP_MS of it is accepted. So a wrong clock ends no time limit, no
back-off and no retention. The wall clock is only for people. Its difference from the counted time is checked every
second, and adopted after it has been steady for a while (see core.wall_span).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from dgpu.core.model.wall_span import WallSpan, newest_span
from dgpu.core.wall_clock import MIN_STEP_MS

MAX_GAP_MS = 12 * 3_600_000  # less than any retention, and less than the age of an idempotency key
HOLD_MS = 30_000  # a changed wall clock is adopted after it has been steady for this long
DOUBT_MS = 5_000  # a larger jump is reported
_TELL_MS = 600_000  # how long a jump is reported
_READ_TRIES = 5
_QUICK_MS = 20


class Machine(Protocol):
    """The clocks of a machine."""

    boot_id: str

    def since_boot_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class ThisMachine:
    def __init__(self) -> None:
        self.boot_id = ""
        with contextlib.suppress(OSError):
            self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

    def since_boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Jump(NamedTuple):
    """The wall clock was changed, or differed at the start."""

    at: int
    by_ms: int  # positive: ahead


class Clock:
    """`last_at` and `spans`: the end of the journal."""

    def __init__(
        self,
        last_at: int = 0,
        spans: Mapping[int, WallSpan] | None = None,
        *,
        machine: Machine | None = None,
    ) -> None:
        self._machine = machine or ThisMachine()
        self._set_at: int | None = None  # when the wall clock began to differ by about `off_by_ms`
        self.off_by_ms = 0  # the wall clock minus the displayed time; 0: they agree
        self.jump: Jump | None = None
        known = newest_span(spans or {})
        booted_ms, wall = self._read()
        now = _start(last_at, known, self._machine.boot_id, booted_ms, wall)
        offset_ms = wall - now
        if known is not None and known.boot_id == self._machine.boot_id:
            moved_ms = offset_ms - known.wall_offset_ms
            offset_ms = known.wall_offset_ms if abs(moved_ms) < MIN_STEP_MS else offset_ms
        else:  # after a machine was off for a while, its clock is correctly ahead
            moved_ms = min(0, wall - _wall_of(last_at, known)) if last_at else 0
        if abs(moved_ms) > DOUBT_MS:
            self.jump = Jump(now, moved_ms)
        self._span = WallSpan(
            boot_id=self._machine.boot_id, boot_offset_ms=now - booted_ms, wall_offset_ms=offset_ms
        )

    def follow(self, last_at: int, spans: Mapping[int, WallSpan], *, is_live: bool) -> None:
        """Another scheduler counts the time, and its latest group has this one. `is_live`: the group is new."""
        booted_ms, wall = self._read()
        known = newest_span(spans)
        if known is not None and known.boot_id == self._machine.boot_id:
            self._span = known  # it counts on this machine
        elif is_live or last_at > booted_ms + self._span.boot_offset_ms:
            self._span = WallSpan(
                boot_id=self._machine.boot_id,
                boot_offset_ms=last_at - booted_ms,
                wall_offset_ms=wall - last_at,
            )

    @property
    def span(self) -> WallSpan:
        return self._span

    def now_ms(self) -> int:
        return self._machine.since_boot_ms() + self._span.boot_offset_ms

    def recent_jump(self) -> Jump | None:
        jump = self.jump
        return jump if jump is not None and self.now_ms() - jump.at < _TELL_MS else None

    def look(self) -> None:
        """Called once a second. `span` changes after the wall clock was changed and has been steady for a while."""
        booted_ms, wall = self._read()
        now = booted_ms + self._span.boot_offset_ms
        off_by_ms = wall - now - self._span.wall_offset_ms
        was_off_by_ms, self.off_by_ms = self.off_by_ms, off_by_ms if abs(off_by_ms) >= MIN_STEP_MS else 0
        if not self.off_by_ms:
            self._set_at = None
        elif self._set_at is None or abs(self.off_by_ms - was_off_by_ms) >= MIN_STEP_MS:
            self._set_at = now
            if abs(self.off_by_ms) > DOUBT_MS:
                self.jump = Jump(now, self.off_by_ms)
        elif now - self._set_at >= HOLD_MS:
            self._set_at, self.off_by_ms = None, 0
            self._span = WallSpan(
                boot_id=self._span.boot_id,
                boot_offset_ms=self._span.boot_offset_ms,
                wall_offset_ms=wall - now,
            )

    def _read(self) -> tuple[int, int]:
        """Both clocks at almost the same moment, also on a busy machine."""
        for _ in range(_READ_TRIES):
            booted_ms = self._machine.since_boot_ms()
            wall = self._machine.wall_ms()
            if self._machine.since_boot_ms() - booted_ms <= _QUICK_MS:
                break
        return booted_ms, wall


def _start(last_at: int, known: WallSpan | None, boot_id: str, booted_ms: int, wall: int) -> int:
    if not last_at:
        return wall
    if known is not None and known.boot_id == boot_id:
        return max(last_at, booted_ms + known.boot_offset_ms)
    return last_at + min(max(1, wall - _wall_of(last_at, known)), MAX_GAP_MS)


def _wall_of(at: int, span: WallSpan | None) -> int:
    return at if span is None else at + span.wall_offset_ms
