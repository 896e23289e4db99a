"""The index behind reservations, with the facts that each pass needs. Derived, never journaled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dgpu.core.index.ends import Ends
from dgpu.core.index.line import Claim, Line
from dgpu.core.model.ids import TaskId
from dgpu.core.model.reservation import Reservation


class Ahead:
    """The quota of its pool and the limits of its tenant that reservations before it will take."""

    __slots__ = ("pool_milli", "tenant", "tenant_tasks")

    def __init__(self, pool_milli: int, tenant: Claim, tenant_tasks: int) -> None:
        self.pool_milli = pool_milli
        self.tenant = tenant
        self.tenant_tasks = tenant_tasks


_NOTHING: Final = Ahead(0, Claim(0, 0), 0)


def ahead_of(line: Line, before: Iterable[Booking]) -> Ahead:
    pool_milli = milli = memory_mb = tasks = 0
    for booking in before:
        other = booking.line
        if other.pool is line.pool:
            pool_milli += other.claim.milli
        if other.account is line.account:
            milli += other.claim.milli
            memory_mb += other.claim.memory_mb
            tasks += 1
    return Ahead(pool_milli, Claim(milli, memory_mb), tasks)


class Booking:
    """A reservation with the facts about its task that other tasks need."""

    __slots__ = ("ahead", "at", "level", "line", "made", "task_id", "window_ms")

    def __init__(self, made: Reservation, line: Line, level: int) -> None:
        self.made = made
        self.task_id: TaskId = made.task_id  # read for every try: compiled, a field of `made` is slower
        self.at = made.at  # likewise
        self.line = line  # of its task
        self.level = level
        self.ahead = _NOTHING
        self.window_ms = 0  # a task that ends within this time does not delay it


class Settled(NamedTuple):
    """A plan is valid while its nodes and their reservations stay unchanged, and until this time."""

    until: int
    rooms: tuple[int, ...]


class Bookings:
    __slots__ = ("_checked", "ends", "in_order", "windows_at")

    def __init__(self) -> None:
        self.ends = Ends()
        self._checked: dict[TaskId, Settled] = {}
        self.in_order: list[Booking] | None = None  # None: must be computed
        self.windows_at = -1  # the time for which their windows are computed

    def changed(self) -> None:
        """A reservation was made, moved or dropped. The rooms of its nodes have new versions."""
        self.in_order = None

    def forget(self, task_id: TaskId) -> None:
        self.changed()
        self._checked.pop(task_id, None)

    def reorder(self) -> None:
        """The rule for levels changed."""
        self.changed()
        self._checked.clear()

    def is_settled(self, task_id: TaskId, at: int, rooms: tuple[int, ...]) -> bool:
        known = self._checked.get(task_id)
        return known is not None and at < known.until and known.rooms == rooms

    def settle(self, task_id: TaskId, until: int, rooms: tuple[int, ...]) -> None:
        self._checked[task_id] = Settled(until, rooms)
