"""The index behind reservations, with the facts that each pass needs. Derived, never journaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dgpu.core.index.ends import Ends
from dgpu.core.model.ids import TaskId
from dgpu.core.model.reservation import Reservation

if TYPE_CHECKING:
    from dgpu.core.index.line import Line


class Booking:
    """A reservation with the facts about its task that other tasks need."""

    __slots__ = ("level", "line", "made", "window_ms")

    def __init__(self, made: Reservation, line: Line, level: int, window_ms: int) -> None:
        self.made = made
        self.line = line  # of its task
        self.level = level
        self.window_ms = window_ms  # a task that ends within this time does not delay it

    @property
    def task_id(self) -> TaskId:
        return self.made.task_id


class Settled(NamedTuple):
    """A plan is valid while its nodes and their reservations stay unchanged, and until this time."""

    until: int
    rooms: tuple[int, ...]


class Bookings:
    __slots__ = ("_at", "_in_order", "checked", "ends")

    def __init__(self) -> None:
        self.ends = Ends()
        self.checked: dict[TaskId, Settled] = {}
        self._at = -1
        self._in_order: list[Booking] | None = None

    def changed(self) -> None:
        """A reservation was made, moved or dropped. The rooms of its nodes have new versions."""
        self._in_order = None

    def forget(self, task_id: TaskId) -> None:
        self.changed()
        self.checked.pop(task_id, None)

    def reorder(self) -> None:
        """The rule for levels changed."""
        self.changed()
        self.checked.clear()

    def settle(self, task_id: TaskId, until: int, rooms: tuple[int, ...]) -> None:
        self.checked[task_id] = Settled(until, rooms)

    def known(self, at: int) -> list[Booking] | None:
        """The bookings cached for exactly this time."""
        return self._in_order if self._at == at else None

    def keep(self, at: int, in_order: list[Booking]) -> None:
        self._at, self._in_order = at, in_order
