"""Time is counted, not read from the wall: no jump of the wall clock ends a limit, and people still see the
right time.
"""

from __future__ import annotations

import pytest

from dgpu.core.apply.table import apply
from dgpu.core.commands import ReadWallClock
from dgpu.core.decide.table import decide
from dgpu.core.state import ClusterState
from dgpu.service.loop.clock import HOLD_MS, MAX_GAP_MS, Clock, ThisMachine
from dgpu.wire.wall_time import WallTime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
REAL_MS = 1_790_000_000_000
JUMPS_MS = [sign * jump for jump in (HOUR_MS, 40 * DAY_MS, 3_650 * DAY_MS) for sign in (1, -1)]


class Machine:
    """True time passes with `wait`; the wall clock is off by what a test sets."""

    def __init__(self) -> None:
        self.boot_id = "first"
        self._passed_ms = 0
        self._booted_ms = -5_000
        self.wall_off_ms = 0

    @property
    def real_ms(self) -> int:
        return REAL_MS + self._passed_ms

    def wait(self, ms: int) -> None:
        self._passed_ms += ms

    def reboot(self, off_ms: int = 60_000) -> None:
        self.wait(off_ms)
        self.boot_id += "+"
        self._booted_ms = self._passed_ms

    def since_boot_ms(self) -> int:
        return self._passed_ms - self._booted_ms

    def wall_ms(self) -> int:
        return self.real_ms + self.wall_off_ms


class Story:
    """A scheduler that is started again and again on one journal."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.state = ClusterState()
        self.shown = WallTime()
        self.start()

    def start(self) -> None:
        self.clock = Clock(self.state.last_at, self.state.wall, machine=self.machine)
        self.journal()

    def journal(self) -> None:
        at = max(self.state.last_at, self.clock.now_ms())
        for event in decide(self.state, ReadWallClock(at=at, span=self.clock.span)):
            apply(self.state, event)
        self.state.last_at = at
        self.shown.follow(self.state.wall)

    def live(self, ms: int) -> None:
        """Looks once a second."""
        for _ in range(ms // 1_000):
            self.machine.wait(1_000)
            self.clock.look()
        self.journal()

    def shown_now(self) -> int:
        return self.shown.wall_ms(self.clock.now_ms())


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_a_running_scheduler_counts_what_passes_and_shows_what_the_wall_clock_says(jump_ms: int) -> None:
    story = Story()
    created_at = story.clock.now_ms()
    story.machine.wall_off_ms = jump_ms
    story.live(5_000)
    assert story.clock.now_ms() - created_at == 5_000
    assert story.clock.off_by_ms == jump_ms
    jump = story.clock.recent_jump()
    assert jump is not None
    assert jump.by_ms == jump_ms
    story.live(HOLD_MS)
    assert story.clock.off_by_ms == 0
    assert story.shown_now() == story.machine.wall_ms()
    assert story.clock.now_ms() - created_at == 5_000 + HOLD_MS


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_a_clock_that_was_wrong_for_a_whole_run_is_right_again_after_the_next_start(jump_ms: int) -> None:
    story = Story()
    story.machine.wall_off_ms = jump_ms
    story.start()
    created_at = story.clock.now_ms()
    story.live(HOUR_MS)
    story.machine.wall_off_ms = 0
    story.machine.wait(10_000)
    story.start()
    assert story.clock.now_ms() - created_at == HOUR_MS + 10_000
    assert story.shown_now() == story.machine.real_ms
    assert story.shown.wall_ms(created_at) == story.machine.real_ms - HOUR_MS - 10_000, (
        "also what was made then"
    )
    jump = story.clock.recent_jump()
    assert jump is not None
    assert jump.by_ms == -jump_ms


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_a_boot_with_a_wrong_clock_moves_time_by_half_a_day_at_most(jump_ms: int) -> None:
    """After a boot only the wall clock knows how long the machine was off. It is not believed beyond reason."""
    story = Story()
    story.live(HOUR_MS)
    before, shown_before = story.clock.now_ms(), story.shown_now()
    story.machine.wall_off_ms = jump_ms
    story.machine.reboot(off_ms=60_000)
    story.start()
    assert before <= story.clock.now_ms() <= before + MAX_GAP_MS
    story.live(60_000)
    story.machine.wall_off_ms = 0
    story.live(2 * HOLD_MS)
    assert story.shown_now() == story.machine.real_ms
    assert story.shown.wall_ms(before) == shown_before, "what was made before the boot stays as it was shown"
    assert story.clock.now_ms() - before <= MAX_GAP_MS + 60_000 + 2 * HOLD_MS


@pytest.mark.parametrize("off_ms", [1_000, 8 * HOUR_MS, 30 * DAY_MS])
def test_a_machine_that_was_off_shows_the_right_time(off_ms: int) -> None:
    story = Story()
    before = story.clock.now_ms()
    story.machine.reboot(off_ms=off_ms)
    story.start()
    assert story.clock.now_ms() - before == min(off_ms, MAX_GAP_MS)
    assert story.shown_now() == story.machine.real_ms
    assert story.clock.recent_jump() is None, "no clock was wrong"


def test_fifty_jumps_leave_no_trace() -> None:
    story = Story()
    created_at = story.clock.now_ms()
    for number in range(50):
        story.machine.wall_off_ms = JUMPS_MS[number % len(JUMPS_MS)]
        story.live(7_000)
        if number % 10 == 9:
            story.start()
    story.machine.wall_off_ms = 0
    story.live(2 * HOLD_MS)
    assert story.clock.now_ms() - created_at == 50 * 7_000 + 2 * HOLD_MS
    assert story.shown.wall_ms(created_at) == REAL_MS
    assert len(story.state.wall) == 1


def test_a_clock_that_is_set_back_and_forth_is_not_followed() -> None:
    story = Story()
    for number in range(60):
        story.machine.wall_off_ms = HOUR_MS * (number % 2)
        story.live(5_000)
        assert story.shown_now() == story.machine.real_ms


def test_small_steps_of_a_time_service_change_nothing() -> None:
    story = Story()
    spans = dict(story.state.wall)
    story.machine.wall_off_ms = 400
    story.live(10 * HOLD_MS)
    story.start()
    assert story.state.wall == spans
    assert story.clock.recent_jump() is None


def test_an_old_journal_ahead_of_the_wall_clock_goes_on_and_new_times_are_right() -> None:
    """Written by a version that took its time from a wall clock 40 days ahead."""
    machine = Machine()
    last_at = machine.real_ms + 40 * DAY_MS
    clock = Clock(last_at, {}, machine=machine)
    assert clock.now_ms() == last_at + 1
    assert clock.now_ms() + clock.span.wall_offset_ms == machine.real_ms


def test_the_time_never_starts_behind_the_journal() -> None:
    """A virtual machine went back to an older picture of itself."""
    story = Story()
    story.live(HOUR_MS)
    story.machine._passed_ms -= HOUR_MS
    last_at = story.state.last_at
    story.start()
    assert story.clock.now_ms() == last_at
    assert story.shown_now() == story.machine.real_ms


def test_the_clocks_of_this_machine_are_read() -> None:
    machine = ThisMachine()
    assert machine.boot_id
    first = Clock(machine=machine)
    again = Clock(first.now_ms(), {first.now_ms(): first.span}, machine=machine)
    assert again.span == first.span
    again.look()
    assert again.off_by_ms == 0
