"""Who holds a reservation, where and for when.

The first tasks in order that no node has room for, as many as the settings say. A task that its pool's quota, its tenant
or its array would keep back anyway holds none. A reservation stands until its task starts: it moves when it can be
earlier, or when what it waits for does not end as it should. It gives way to tasks of a higher priority, and to
nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from dgpu.core.bookings import Look
from dgpu.core.events import TasksReserved
from dgpu.core.ids import LeaseId, NodeId, TaskId, TenantId
from dgpu.core.line import Claim, Line, Turn
from dgpu.core.policy.backfill import by_time, level_of
from dgpu.core.policy.fit import Demand
from dgpu.core.policy.lasting import NEVER, UNKNOWN, ends_at, lasts_ms
from dgpu.core.policy.quota import has_quota, is_kept, within_limits
from dgpu.core.policy.soonest import Cluster, Opening, Taken, opening
from dgpu.core.reservation import Hold, Place, Reservation
from dgpu.core.room import Room
from dgpu.core.state import ClusterState
from dgpu.core.task import Pool

LOOK_AGAIN_MS = 10_000  # something may have become free elsewhere: looked for only so often
_MOST_TRIES = 32  # plans in one go
_LONG_QUEUE = 100
_SLACK_MS = 5_000  # a time that slips by less is left as it is: a task took some time to begin
_LAST_OF_ALL: Turn = (1 << 62, 0, TaskId(0), 0)  # type: ignore[assignment]


def reservations_due(state: ClusterState, at: int) -> bool:
    if not state.settings.reservations:
        return bool(state.reservations)
    bookings = state.bookings
    if not state.reservations and _all_alike(state):
        return False
    if state.waiting.overtaken or state.rooms.unsettled:
        return True
    if bookings.due and not bookings.rests(at, state.next_task_id):
        return True
    return bool(state.reservations) and at - bookings.looked_at >= LOOK_AGAIN_MS


def note_admissions(state: ClusterState) -> None:
    """After grants: a reservation that quota or limits no longer allow blocks nobody."""
    tally = _Tally(state, counted=False)
    for task_id in state.reservations:
        line = state.waiting.lines[state.tasks[task_id].shape_id]
        if line.barred or not tally.admits(line):
            state.bookings.due = True
            state.bookings.fruitless = None  # at once: it would keep others back
            return


def replan(state: ClusterState, at: int) -> tuple[TasksReserved, ...]:
    """What has changed about all reservations. Nothing is applied yet."""
    bookings, most = state.bookings, state.settings.reservations
    everything = at - bookings.looked_at >= LOOK_AGAIN_MS or bookings.displaced
    unsettled = set(state.rooms.unsettled)
    bookings.due = bookings.displaced = state.waiting.overtaken = False
    state.rooms.unsettled.clear()
    if everything:
        bookings.looked_at = at
    draft = _Draft(state, at)
    last = _fill(draft, lambda known: everything or _is_stale(known, unsettled, draft, at))
    state.waiting.last_reserved = last if len(draft.plans) >= most > 0 else _LAST_OF_ALL if most else None
    planned = draft.events()
    in_vain = not planned and len(draft.plans) < most
    bookings.fruitless = (at, state.next_task_id) if in_vain else None
    return planned


def _fill(draft: _Draft, is_stale: Callable[[Reservation], bool]) -> Turn | None:
    """As many as may be held. A task that no node could ever hold as things are takes nobody's place."""
    state, most = draft.state, draft.state.settings.reservations
    tally = _Tally(state, counted=False)
    alike = _all_alike(state)
    kept: set[TaskId] = set()
    hopeless: set[Demand] = set()
    last: Turn | None = None
    tries = 0
    for task_id, line in _wanted(state):
        if len(kept) >= most or tries >= _MOST_TRIES:
            break
        demand = line.crowd.demand
        if task_id in kept or line.barred or demand in hopeless or not tally.admits(line):
            continue
        known = state.reservations.get(task_id)
        if known is None and alike:
            continue
        if known is None or is_stale(known):
            tries += 1
            draft.plan(task_id, line, known)
        if task_id not in draft.plans:
            hopeless.add(demand)
            continue
        tally.add(line)
        kept.add(task_id)
        last = (-line.level(task_id), line.account.share, task_id, line.shape_id)
    for task_id in [each for each in draft.plans if each not in kept]:
        draft.drop(task_id)
    return last


def reserve_head(state: ClusterState, line: Line, at: int) -> tuple[TasksReserved, ...]:
    """A task was just found to fit nowhere: before anybody behind it is tried, it gets what it will need."""
    most, head = state.settings.reservations, line.head
    if head in state.reservations:
        return ()
    turn, last = line.turn(), state.waiting.last_reserved
    if turn is None or (last is not None and turn >= last):
        return ()
    if len(state.reservations) >= most:
        return replan(state, at)
    state.bookings.due = True
    if _all_alike(state) or not _Tally(state).admits(line):
        return ()
    draft = _Draft(state, at)
    draft.plan(head, line, None)
    return draft.events()


def _all_alike(state: ClusterState) -> bool:
    """A long queue of one demand: nobody in it can run ahead of another, and to plan with every start would cost more
    than all else.
    """
    waiting = state.waiting
    return waiting.count > _LONG_QUEUE and sum(len(lane.crowds) for lane in waiting.lanes.values()) == 1


def _is_stale(known: Reservation, unsettled: set[NodeId], draft: _Draft, at: int) -> bool:
    if known.at and known.at <= at:
        return True
    return bool(draft.changed) or any(place.node_id in unsettled for place in known.places)


# who


class _Tally:
    """What the reservations counted so far will take of quotas and limits, with what is in use now."""

    def __init__(self, state: ClusterState, *, counted: bool = True) -> None:
        self.state = state
        self.milli: Counter[Pool | None] = Counter()
        self.tenants: dict[TenantId, Claim] = {}
        self.tasks: Counter[TenantId] = Counter()
        self.arrays: Counter[TaskId] = Counter()
        if counted:
            for task_id in state.reservations:
                self.add(state.waiting.lines[state.tasks[task_id].shape_id])

    def add(self, line: Line) -> None:
        claim, tenant_id = line.crowd.claim, line.shape.tenant_id
        self.milli[line.crowd.lane.pool] += claim.milli
        before = self.tenants.get(tenant_id, Claim(0, 0))
        self.tenants[tenant_id] = Claim(before.milli + claim.milli, before.memory_mb + claim.memory_mb)
        self.tasks[tenant_id] += 1
        self.arrays[line.shape.array_id] += 1

    def admits(self, line: Line) -> bool:
        state, shape, account = self.state, line.shape, line.account
        claim = line.crowd.claim
        if not has_quota(state, line.crowd.lane, claim.milli + self.milli[line.crowd.lane.pool]):
            return False
        if shape.array_id:
            running = state.waiting.arrays.get(shape.array_id, 0) + self.arrays[shape.array_id]
            if running >= shape.array_limit:
                return False
        if not state.tenants:
            return True
        ahead = self.tenants.get(shape.tenant_id, Claim(0, 0))
        both = Claim(claim.milli + ahead.milli, claim.memory_mb + ahead.memory_mb)
        tenant = account.tenant
        most = None if tenant is None else tenant.max_running
        if most is not None and account.running + self.tasks[shape.tenant_id] >= most:
            return False
        return within_limits(state, account, both) and not is_kept(state, account, claim)


def _wanted(state: ClusterState) -> Iterator[tuple[TaskId, Line]]:
    """In order of level, those that hold one already first: what was promised is not taken back for a new one of the
    same priority.
    """
    known = sorted(
        (-level_of(state, task_id), made.made_at, task_id) for task_id, made in state.reservations.items()
    )
    fresh = _in_order(state)
    candidate = next(fresh, None)
    while known or candidate is not None:
        if candidate is None or (known and known[0][0] <= candidate[0][0]):
            task_id = known.pop(0)[2]
            yield task_id, state.waiting.lines[state.tasks[task_id].shape_id]
        else:
            yield candidate[1], candidate[2]
            candidate = next(fresh, None)


def _in_order(state: ClusterState) -> Iterator[tuple[Turn, TaskId, Line]]:
    """Waiting tasks of demands that fit nowhere, in order, without those that hold a reservation."""
    heap = [(turn, 0, line) for turn, line in state.waiting.blocked_lines()]
    most = state.settings.reservations + len(state.reservations)
    heapify(heap)
    tally = _Tally(state, counted=False)
    while heap:
        turn, number, line = heap[0]
        task_id = turn[2]
        if not number and (not tally.admits(line) or line.crowd.lane.is_woken(line.crowd)):
            heappop(heap)
            continue
        if task_id not in state.reservations:
            yield turn, task_id, line
        following = line.ready_from(TaskId(task_id + 1), 1) if number < most else []
        if following:
            next_id = following[0]
            heapreplace(heap, ((-line.level(next_id), turn[1], next_id, turn[3]), number + 1, line))
        else:
            heappop(heap)


# where and when


class _Plan(NamedTuple):
    at: int
    places: tuple[Place, ...]


class _Draft:
    """Reservations as they are going to be; what is not planned anew stays."""

    def __init__(self, state: ClusterState, at: int) -> None:
        self.state = state
        self.at = at
        self.plans: dict[TaskId, Reservation] = dict(state.reservations)
        self.changed: dict[TaskId, None] = {}
        self.dropped: dict[TaskId, None] = {}
        self._ends: dict[LeaseId, int] = {}
        if state.rooms.moved is None:
            state.rooms.moved = state.bookings.moved

    def drop(self, task_id: TaskId) -> None:
        if self.plans.pop(task_id, None) is not None:
            self.changed.pop(task_id, None)
            self.dropped[task_id] = None

    def plan(self, task_id: TaskId, line: Line, known: Reservation | None) -> None:
        demand, level = line.crowd.demand, line.level(task_id)
        others = [
            each
            for each in self.plans.values()
            if each.task_id != task_id and level_of(self.state, each.task_id) >= level
        ]
        plan = self._soonest(demand, self._taken(others))
        if known is not None:
            plan = self._staying(known, demand, others, plan)
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

    def _is_as_before(self, known: Reservation, made: Reservation) -> bool:
        if known.at == made.at:
            return True
        if not known.at or not made.at:
            return False
        overdue = known.at <= self.at and made.at <= self.at
        return overdue or (known.at > self.at and abs(made.at - known.at) <= _SLACK_MS)

    def events(self) -> tuple[TasksReserved, ...]:
        if not self.changed and not self.dropped:
            return ()
        made = tuple(self.plans[task_id] for task_id in self.changed)
        return (TasksReserved(at=self.at, made=made, dropped=tuple(self.dropped)),)

    # leaves

    def _taken(
        self, others: list[Reservation], known: Reservation | None = None
    ) -> dict[NodeId, list[Taken]]:
        """By node: what others will hold there, each until it is over. Those that come after `known` were made knowing
        that it comes first: they are not in its way where it is.
        """
        own = {} if known is None else {place.node_id: place.gpu_ids for place in known.places}
        found: dict[NodeId, list[Taken]] = {}
        for other in others:
            task = self.state.tasks[other.task_id]
            shape = self.state.shapes[task.shape_id]
            lasts = lasts_ms(self.state, task)
            until = lasts if lasts >= UNKNOWN else max(other.at, self.at) + lasts if other.at else UNKNOWN
            comes_later = (
                known is not None
                and by_time(known) < by_time(other)
                and level_of(self.state, known.task_id) == level_of(self.state, other.task_id)
            )
            for place in other.places:
                hold = Hold(place.gpu_ids, shape.cpus_milli, shape.ram_mb)
                if comes_later and place.node_id in own:
                    rest = tuple(each for each in place.gpu_ids if each not in own[place.node_id])
                    hold = Hold(rest, 0, 0)
                found.setdefault(place.node_id, []).append(Taken(hold, until))
        return found

    def _soonest(self, demand: Demand, taken: dict[NodeId, list[Taken]]) -> _Plan | None:
        rooms, look = self.state.rooms.by_node, self._look(demand)
        index = self.state.bookings.soonest(demand, rooms.values(), look)
        found = index.first(demand.nodes, rooms, look, taken)
        for node_id, holds in taken.items():
            room = rooms.get(node_id)
            seen = None if room is None else opening(room, demand, self._cluster(), holds)
            if seen is not None:
                found.append((seen.at, node_id, seen))
        found.sort(key=lambda each: each[:2])
        return _plan_of(found[: demand.nodes]) if len(found) >= demand.nodes else None

    def _staying(
        self, known: Reservation, demand: Demand, others: list[Reservation], other: _Plan | None
    ) -> _Plan | None:
        """Where it is, unless it can be earlier elsewhere."""
        rooms, taken = self.state.rooms.by_node, self._taken(others, known)
        found: list[tuple[int, NodeId, Opening]] = []
        for place in known.places:
            room = rooms.get(place.node_id)
            seen = (
                None if room is None else opening(room, demand, self._cluster(), taken.get(place.node_id, ()))
            )
            if seen is None:
                return other
            found.append((seen.at, place.node_id, seen))
        stays = _plan_of(sorted(found, key=lambda each: each[:2]))
        return stays if other is None or stays.at <= other.at else other

    def _look(self, demand: Demand) -> Look:
        cluster = self._cluster()

        def look(room: Room) -> Opening | None:
            return opening(room, demand, cluster)

        return look

    def _cluster(self) -> Cluster:
        state = self.state
        return Cluster(state.leases, state.rooms.holders, self._ends_at, state.settings.most_leases)

    def _ends_at(self, lease_id: LeaseId) -> int:
        known = self._ends.get(lease_id)
        if known is None:
            known = self._ends[lease_id] = ends_at(self.state, lease_id, self.at)
        return known


def _plan_of(found: list[tuple[int, NodeId, Opening]]) -> _Plan:
    """All of the nodes are needed: the last of them decides."""
    unknown = [at for at, _, _ in found if UNKNOWN <= at < NEVER]
    latest = found[-1][0]
    at = latest if not unknown or latest >= NEVER else UNKNOWN + sum(each - UNKNOWN for each in unknown)
    return _Plan(at, tuple(Place(node_id, seen.gpu_ids) for _, node_id, seen in found))
