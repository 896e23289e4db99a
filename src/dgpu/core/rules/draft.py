"""Reservations as they are going to be: where and for when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from dgpu.core.events import TasksReserved
from dgpu.core.index.bookings import IN_PASSING, THOROUGH, Look
from dgpu.core.index.line import Line
from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.reservation import Hold, Place, Reservation
from dgpu.core.rules.backfill import by_time, level_of
from dgpu.core.rules.durations import NEVER, UNKNOWN, Ends, lasts_ms
from dgpu.core.rules.openings import Cluster, Opening, Taken, opening, opens_at
from dgpu.core.state import ClusterState

_SLACK_MS: Final = 5_000  # a time that slips by less is left as it is: a task took some time to begin

_Found: TypeAlias = tuple[int, NodeId, Opening]  # when and where
_BY_TIME: Final = itemgetter(0, 1)


class _Plan(NamedTuple):
    at: int
    places: tuple[Place, ...]


class Draft:
    """What is not planned anew stays. `anywhere`: look for something earlier, too, where a reservation could stay."""

    def __init__(
        self, state: ClusterState, at: int, unsettled: Iterable[NodeId] = (), *, anywhere: bool
    ) -> None:
        self.state = state
        self.at = at
        self.anywhere = anywhere
        self.plans: dict[TaskId, Reservation] = dict(state.reservations)
        self.changed: dict[TaskId, None] = {}
        self.dropped: dict[TaskId, None] = {}
        self.touched = set(unsettled)  # of these nodes something changed
        if state.rooms.moved is None:
            state.rooms.moved = state.bookings.moved
        ends = state.bookings.ends
        # Not a method of this draft: the cycle would keep the state alive until the next garbage collection.
        self._cluster = Cluster(
            state.leases,
            state.rooms.holders,
            ends.known,
            _asking(ends, state, at),
            state.settings.most_leases,
        )

    def is_stale(self, known: Reservation) -> bool:
        if self.anywhere or (known.at and known.at <= self.at):
            return True
        return not self.touched.isdisjoint([place.node_id for place in known.places])

    def drop(self, task_id: TaskId) -> None:
        known = self.plans.pop(task_id, None)
        if known is not None:
            self.changed.pop(task_id, None)
            self.dropped[task_id] = None
            self.touched.update(place.node_id for place in known.places)

    def plan(self, task_id: TaskId, line: Line, known: Reservation | None) -> None:
        demand, level = line.crowd.demand, line.level(task_id)
        plan = None if known is None else self._staying(known, demand, level)
        if plan is None or self.anywhere or known is None or not _is_kept(known, plan):
            other = self._soonest(demand, self._taken(self._others(task_id, level)))
            if plan is None or (other is not None and other.at < plan.at):
                plan = other
        if plan is None or plan.at >= NEVER:
            self.drop(task_id)
            return
        made_at = self.at if known is None else known.made_at
        at = 0 if plan.at >= UNKNOWN else max(plan.at, self.at)
        made = Reservation(task_id=task_id, places=plan.places, at=at, made_at=made_at)
        if known is not None and known.places == made.places and self._is_as_before(known, made):
            return
        self.plans[task_id] = made
        self.changed[task_id] = None
        self.dropped.pop(task_id, None)
        for each in (made,) if known is None else (made, known):
            self.touched.update([place.node_id for place in each.places])

    def events(self) -> tuple[TasksReserved, ...]:
        if not self.changed and not self.dropped:
            return ()
        made = tuple(self.plans[task_id] for task_id in self.changed)
        return (TasksReserved(at=self.at, made=made, dropped=tuple(self.dropped)),)

    # leaves

    def _is_as_before(self, known: Reservation, made: Reservation) -> bool:
        if known.at == made.at:
            return True
        if not known.at or not made.at:
            return False
        overdue = known.at <= self.at and made.at <= self.at
        return overdue or (known.at > self.at and abs(made.at - known.at) <= _SLACK_MS)

    def _others(self, task_id: TaskId, level: int) -> list[Reservation]:
        """Those that do not give way to it."""
        return [
            each
            for each in self.plans.values()
            if each.task_id != task_id and level_of(self.state, each.task_id) >= level
        ]

    def _taken(
        self, others: list[Reservation], known: Reservation | None = None
    ) -> dict[NodeId, list[Taken]]:
        """By node: what others will hold there, each until it is over. With `known`, on its nodes alone, and those that
        come after it were made knowing that it comes first: they are not in its way where it is.
        """
        own = None if known is None else {place.node_id: place.gpu_ids for place in known.places}
        found: dict[NodeId, list[Taken]] = {}
        for other in others:
            places = other.places if own is None else [each for each in other.places if each.node_id in own]
            if not places:
                continue
            task = self.state.tasks[other.task_id]
            shape = self.state.shapes[task.shape_id]
            lasts = lasts_ms(self.state, task)
            until = lasts if lasts >= UNKNOWN else max(other.at, self.at) + lasts if other.at else UNKNOWN
            comes_later = known is not None and self._comes_later(other, known)
            for place in places:
                hold = Hold(place.gpu_ids, shape.cpus_milli, shape.ram_mb)
                if comes_later and own is not None:
                    rest = tuple(each for each in place.gpu_ids if each not in own[place.node_id])
                    hold = Hold(rest, 0, 0)
                found.setdefault(place.node_id, []).append(Taken(hold, until))
        return found

    def _comes_later(self, other: Reservation, known: Reservation) -> bool:
        return by_time(known) < by_time(other) and level_of(self.state, known.task_id) == level_of(
            self.state, other.task_id
        )

    def _soonest(self, demand: Demand, taken: dict[NodeId, list[Taken]]) -> _Plan | None:
        rooms, look = self.state.rooms, self._look(demand)
        pace = THOROUGH if self.anywhere else IN_PASSING
        index = self.state.bookings.soonest(demand, rooms, look, pace)
        free = index.first(demand.nodes, rooms.by_node, look, taken, pace)
        last = free[-1] if len(free) == demand.nodes else None
        for node_id, holds in taken.items():
            room = rooms.by_node.get(node_id)
            if room is None or (last is not None and _not_before(room, demand, holds) > last[0]):
                continue
            at = look(room)
            if at is not None and (last is None or (at, node_id) < last):
                free.append((at, node_id))
        found = [
            (seen.at, node_id, seen)
            for _, node_id in free
            if (seen := self._opening(node_id, demand, taken.get(node_id, ()))) is not None
        ]
        found.sort(key=_BY_TIME)
        return _plan_of(found[: demand.nodes]) if len(found) >= demand.nodes else None

    def _opening(self, node_id: NodeId, demand: Demand, holds: Sequence[Taken] = ()) -> Opening | None:
        room = self.state.rooms.by_node.get(node_id)
        return None if room is None else opening(room, demand, self._cluster, holds)

    def _staying(self, known: Reservation, demand: Demand, level: int) -> _Plan | None:
        """Where it is; None if there it can no longer be."""
        taken: dict[NodeId, list[Taken]] = {}
        if self.changed or not self._is_alone(known):
            taken = self._taken(self._others(known.task_id, level), known)
        found: list[_Found] = []
        for place in known.places:
            seen = self._opening(place.node_id, demand, taken.get(place.node_id, ()))
            if seen is None:
                return None
            found.append((seen.at, place.node_id, seen))
        found.sort(key=_BY_TIME)
        return _plan_of(found)

    def _is_alone(self, known: Reservation) -> bool:
        """Nobody else has a reservation on its nodes."""
        rooms = self.state.rooms.by_node
        for place in known.places:
            room = rooms.get(place.node_id)
            if room is not None and len(room.holds) > 1:
                return False
        return True

    def _look(self, demand: Demand) -> Look:
        cluster = self._cluster

        def look(room: Room) -> int | None:
            return opens_at(room, demand, cluster)

        return look


def _asking(ends: Ends, state: ClusterState, at: int) -> Callable[[LeaseId], int]:
    def ends_at(lease_id: LeaseId) -> int:
        known = ends.known.get(lease_id)
        return ends.ask(state, lease_id, at) if known is None else known

    return ends_at


def _not_before(room: Room, demand: Demand, holds: list[Taken]) -> int:
    """Where others will hold so many cards that it needs one of theirs, it waits for the first of them at least."""
    held = {gpu_id for each in holds for gpu_id in each.hold.gpu_ids}
    return 0 if len(room.cards) - len(held) >= demand.gpus else min([each.until for each in holds])


def _is_kept(known: Reservation, plan: _Plan) -> bool:
    """What was said still holds where it is, or better."""
    return plan.at <= known.at + _SLACK_MS if known.at else plan.at < NEVER


def _plan_of(found: list[_Found]) -> _Plan:
    """All of the nodes are needed: the last of them decides."""
    if len(found) == 1:
        ((at, node_id, seen),) = found
        return _Plan(at, (Place(node_id, seen.gpu_ids),))
    unknown = [at for at, _, _ in found if UNKNOWN <= at < NEVER]
    latest = max(at for at, _, _ in found)
    at = latest if not unknown or latest >= NEVER else UNKNOWN + sum(each - UNKNOWN for each in unknown)
    return _Plan(at, tuple([Place(node_id, seen.gpu_ids) for _, node_id, seen in found]))
