"""The wall clock in the journal: a few numbers for showing times, and the months of budgets."""

from __future__ import annotations

from dgpu.core.apply.table import apply
from dgpu.core.commands import ReadWallClock
from dgpu.core.decide.table import decide
from dgpu.core.digest import digest
from dgpu.core.model.usage import Usage, charged, month_of
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import MAX_SPANS

DAY_MS = 86_400_000
AT = 1_790_000_000_000


def read(state: ClusterState, at: int, boot_id: str = "b", wall_offset_ms: int = 0) -> int:
    """How many events it makes."""
    span = WallSpan(boot_id=boot_id, boot_offset_ms=7, wall_offset_ms=wall_offset_ms)
    events = decide(state, ReadWallClock(at=at, span=span))
    for event in events:
        apply(state, event)
    return len(events)


def test_a_wall_clock_that_agrees_is_not_written_again() -> None:
    state = ClusterState()
    assert [read(state, AT), read(state, AT + 5), read(state, AT + 6, wall_offset_ms=499)] == [1, 0, 0]
    assert read(state, AT + 7, wall_offset_ms=-40 * DAY_MS) == 1
    assert state.wall_ms(AT + 7) == AT + 7 - 40 * DAY_MS
    assert list(state.wall) == [AT], "the boot is the same one"
    assert read(state, AT + 8, wall_offset_ms=-40 * DAY_MS) == 0


def test_boots_are_bounded() -> None:
    state = ClusterState()
    for boot in range(3 * MAX_SPANS):
        read(state, AT + boot, boot_id=f"boot-{boot}")
    assert len(state.wall) == MAX_SPANS
    assert max(state.wall) == AT + 3 * MAX_SPANS - 1


def test_months_are_those_of_the_wall_clock_also_after_a_rebuild_and_in_a_fork() -> None:
    state = ClusterState()
    read(state, AT, wall_offset_ms=40 * DAY_MS)
    twin = ClusterState.from_parts(state.fork().parts())
    for each in (state, state.fork(), twin):
        assert each.month_at(AT) == month_of(AT + 40 * DAY_MS)
    assert digest(twin) == digest(state)


def test_a_clock_that_is_set_back_does_not_renew_a_budget() -> None:
    month = month_of(AT)
    used = charged(charged(Usage(), 100, 1, month), 20, 1, month - 1)
    assert (used.month, used.of_month) == (month, 120)
    assert charged(used, 5, 1, month + 1).of_month == 5
