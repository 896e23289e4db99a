"""Which reservations block a task.

A task may take GPUs reserved for another task in three cases: it has a higher level; it is within its tenant's
guarantee and the reservation is not; or it ends before the reservation begins. The last case is backfill and delays
nothing. A reservation of unknown time lets a task ahead if the task ends within `PATIENCE_MS`. That is the most it can
lose: as soon as the ends of all other leases are known, its own time is known, too.

Reservations have an order: highest level first, then the oldest. Each is planned around the reservations before it. So
on its own GPUs, later reservations do not block it, unless they begin before it: they count on GPUs that are free until
then. A reservation with a time does not wait for the quota of one of its level without a time, because that one in turn
waits for the GPUs of the first.
"""

from __future__ import annotations

from typing import Final

from dgpu.core.index.account import PoolUse
from dgpu.core.index.bookings import Booking, ahead_of
from dgpu.core.index.line import Line
from dgpu.core.index.room import Room
from dgpu.core.model.ids import NO_TASK, GpuId, TaskId
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.durations import KILL_GRACE_MS, NEVER, RELEASE_MS, rounded_up
from dgpu.core.state import ClusterState

IDLE_PERCENT: Final = 5  # of a pool
GROWS_MS: Final = 7 * 86_400_000  # added for each further bound that a reservation needs
PATIENCE_MS: Final = rounded_up(
    3_600_000 + KILL_GRACE_MS + RELEASE_MS
)  # the default time limit of batch tasks


class Access:
    """The reservations that one task may pass, and the reservations that it may not. Treated as frozen; one is created
    for each try.
    """

    __slots__ = ("behind", "delayed", "own", "passed")

    def __init__(
        self, passed: frozenset[TaskId], own: TaskId, behind: frozenset[TaskId], delayed: list[Booking]
    ) -> None:
        self.passed = passed  # on every node; includes its own
        self.own = own  # the task, if it holds a reservation; else NO_TASK
        self.behind = behind  # after its own in order, and not sooner: passed on the GPUs of its own
        self.delayed = delayed  # before its own, and not passed: the task may not take their quota


_NONE: Final[frozenset[TaskId]] = frozenset()
NO_RESERVATIONS: Final = Access(_NONE, NO_TASK, _NONE, [])


def bookings_in_order(state: ClusterState, at: int) -> list[Booking]:
    """All reservations: the highest level first, then the oldest."""
    bookings = state.bookings
    known = bookings.in_order
    if known is not None and bookings.windows_at == at:
        return known
    if known is None:
        known = bookings.in_order = [_booking(state, made) for made in state.reservations.values()]
        known.sort(key=lambda each: (-each.level, each.made.number, each.made.made_at, each.task_id))
        for number, booking in enumerate(known):
            booking.ahead = ahead_of(booking.line, known[:number])
    bookings.windows_at = at
    for booking in known:
        booking.window_ms = window_ms(booking.at, at)
    _bound_idle(state, known, at)
    return known


def _booking(state: ClusterState, made: Reservation) -> Booking:
    line = state.queue.line_of(state.tasks[made.task_id])
    return Booking(made, line, line.level(made.task_id))


def _bound_idle(state: ClusterState, bookings: list[Booking], at: int) -> None:
    """Bounds the GPUs and quota that reservations of unknown time keep idle.

    In each pool, such reservations hold at once as much as one node or a part of the pool, the larger. The others hold
    nothing at first: all tasks pass them. Their bound starts at zero and grows by the same amount for each `GROWS_MS`
    that a reservation stands, so that no task starves.
    """
    within: dict[PoolUse, int] = {}
    beyond: dict[PoolUse, int] = {}
    for booking in bookings:
        if booking.at:
            continue
        pool, milli = booking.line.pool, booking.line.claim.milli
        bound = _idle_bound(state, pool)
        if within.get(pool, 0) + milli <= bound:
            within[pool] = within.get(pool, 0) + milli
            continue
        beyond[pool] = beyond.get(pool, 0) + milli
        if beyond[pool] * GROWS_MS > bound * (at - booking.made.made_at):
            booking.window_ms = NEVER


def _idle_bound(state: ClusterState, pool: PoolUse) -> int:
    return max(state.rooms.largest_gpus() * WHOLE_MILLI, pool.limit_milli * IDLE_PERCENT // 100)


def window_ms(begins_at: int, at: int) -> int:
    """A task that ends within this time does not delay the reservation, or delays it by at most `PATIENCE_MS`."""
    return max(0, begins_at - at) if begins_at else PATIENCE_MS


def is_passed(booking: Booking, level: int, lasts_ms: int) -> bool:
    return booking.level < level or lasts_ms <= booking.window_ms


def begins_before(booking: Booking, other: Booking) -> bool:
    at, other_at = booking.at, other.at
    return at > 0 and (not other_at or at < other_at)


def is_favoured(line: Line) -> bool:
    """A task of the line is within the unused part of its tenant's guarantee."""
    return 0 < line.claim.milli <= line.account.short_milli()


def access_of(state: ClusterState, line: Line, task_id: TaskId, at: int) -> Access:
    if not state.reservations:
        return NO_RESERVATIONS
    passed: list[TaskId] = []
    behind: list[TaskId] = []
    delayed: list[Booking] = []
    own: Booking | None = None
    level = line.level(task_id)
    mine = state.reservations.get(task_id)
    has_time = mine is not None and mine.at > 0
    favoured = is_favoured(line)
    for booking in bookings_in_order(state, at):
        other = booking.task_id
        if other == task_id:
            own = booking
            passed.append(other)
        elif is_passed(booking, level, line.lasts_ms) or (favoured and not is_favoured(booking.line)):
            passed.append(other)
        elif own is None:
            if booking.at or booking.level > level or not has_time:
                delayed.append(booking)
        elif not begins_before(booking, own):
            behind.append(other)
    return Access(
        frozenset(passed) if passed else _NONE,
        NO_TASK if own is None else task_id,
        frozenset(behind) if behind else _NONE,
        delayed,
    )


def in_the_way(room: Room, access: Access) -> list[TaskId]:
    """The tasks whose reservations on this node would be delayed if the task took their cpus and ram."""
    passed = access.passed | access.behind if access.own in room.holds else access.passed
    return [task_id for task_id in room.holds if task_id not in passed]


def view(room: Room, access: Access) -> Room:
    """The room with the GPUs that a task may use: without GPUs reserved for tasks that it would delay."""
    keeps: dict[GpuId, tuple[TaskId, ...]] = {}
    for gpu_id, keepers in room.keeps.items():
        passed = access.passed | access.behind if access.own in keepers else access.passed
        if not passed.issuperset(keepers):
            keeps[gpu_id] = keepers
    twin = room.copy()
    twin.hide(keeps, 0, 0)
    return twin
