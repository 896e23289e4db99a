"""Reservations: for which task, on which GPUs, for which time.

When a line is refused for lack of GPUs, its first task gets a reservation if a slot is free or held by a lower level.
It reserves the GPUs that are free first, beside earlier reservations. When a line waits for quota and a smaller task is
about to start ahead of it, its head reserves quota alone. Its time is when enough leases of its pool or tenant have
ended.

A reservation stands until its task starts. It moves when it can be earlier on its nodes, and is planned anew when it
would slip. Only tasks of a higher level displace it. If its time comes and there is no quota, it keeps quota alone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from msgspec.structs import replace

from dgpu.core.events import TasksReserved
from dgpu.core.index.beds import FREE_SLOT, NO_SLOT
from dgpu.core.index.bookings import Ahead, Booking, ahead_of
from dgpu.core.index.ends import Holder
from dgpu.core.index.line import Line
from dgpu.core.index.room import Room
from dgpu.core.index.soonest import Candidate
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.reservation import Place, Reservation
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.access import access_of, begins_before, bookings_in_order
from dgpu.core.rules.admission import (
    admit,
    beyond_limits,
    guarantees,
    has_quota,
    held_by,
    tenant_budget,
    tenant_running,
)
from dgpu.core.rules.durations import NEVER, UNKNOWN
from dgpu.core.rules.openings import (
    PART,
    Cluster,
    Opening,
    Taken,
    Times,
    cards_at,
    opening,
    opening_in,
    taken_by,
    times_on,
)
from dgpu.core.state import ClusterState

SLACK_MS: Final = 5_000  # a smaller change of the time is ignored: tasks take some time to begin


class Plan:
    __slots__ = ("at", "places")

    def __init__(self, at: int, places: tuple[Place, ...] = ()) -> None:
        self.at = at  # from UNKNOWN on: unknown, the more GPUs the larger; from NEVER on: never
        self.places = places  # empty: it reserves quota alone


def slot_level(state: ClusterState, at: int) -> int:
    """A task above this level may take a slot: a free one, or that of the last reservation."""
    if not state.settings.reservations:
        return NO_SLOT
    if len(state.reservations) < state.settings.reservations:
        return FREE_SLOT
    return bookings_in_order(state, at)[-1].level


def reserve(
    state: ClusterState, line: Line, at: int, *, quota_alone: bool
) -> tuple[TasksReserved, ...] | None:
    """A reservation for the first task of a refused line that has none; () if the task may have none; None if no task
    with the same demand could have one. A task that reserved quota alone, and waits for GPUs now, reserves GPUs.
    """
    if not state.settings.reservations or state.queue.is_uniform:
        return ()
    bookings = bookings_in_order(state, at)
    own = None if quota_alone else _of_quota_alone(state, bookings, line, at)
    task_id = line.first_not_in(state.reservations) if own is None else own.task_id
    if not task_id:
        return ()
    level = line.level(task_id)
    dropped: tuple[TaskId, ...] = ()
    if own is None:
        above = slot_level(state, at)
        if level <= above:
            return ()
        dropped = () if above == FREE_SLOT else (bookings[-1].task_id,)
    stands_at = (
        len([each for each in bookings if each.level >= level]) if own is None else bookings.index(own)
    )
    before = bookings[:stands_at]
    if (
        not _is_allowed(state, line, ahead_of(line, before))
        or guarantees(state, line.account, line.claim) is not None
    ):
        return ()
    planner = Planner(state, at)
    plan = Plan(planner.quota_at(line, before)) if quota_alone else planner.anywhere(line, before)
    if plan is None or plan.at >= NEVER:
        return None
    number = 1 + max([booking.made.number for booking in bookings], default=0)
    known = Reservation(task_id=task_id, places=(), made_at=at, number=number) if own is None else own.made
    return (TasksReserved(at=at, made=(_moved(known, plan),), dropped=dropped),)


def _of_quota_alone(state: ClusterState, bookings: Sequence[Booking], line: Line, at: int) -> Booking | None:
    """The first reservation of the line without GPUs whose task has quota now."""
    if not line.reserved:
        return None
    alone = [each for each in bookings if each.line is line and not each.made.places]
    return next((each for each in alone if not _lacks_quota(state, each, at)), None)


def keep_reservations(state: ClusterState, at: int, *, full: bool) -> tuple[TasksReserved, ...]:
    """The first change that a reservation needs, in order; () if none does. `full`: a reservation also moves to a node
    where it can be earlier, and one of quota alone to an earlier time.
    """
    if not state.reservations:
        return ()
    bookings = bookings_in_order(state, at)
    planner = Planner(state, at)
    for number, booking in enumerate(bookings):
        if number >= state.settings.reservations or not _is_allowed(state, booking.line, booking.ahead):
            return (TasksReserved(at=at, dropped=(booking.task_id,)),)
        if planner.awaits_nodes(booking):
            continue
        plan: Plan | None
        if _awaits_quota(state, booking, at):
            plan = Plan(planner.quota_at(booking.line, bookings[:number]))
        elif not full and planner.is_settled(booking):
            continue
        else:
            behind = [each for each in bookings[number + 1 :] if each.level == booking.level]
            plan = planner.again(booking, bookings[:number], behind, anywhere=full)
        if plan is None or plan.at >= NEVER:
            return (TasksReserved(at=at, dropped=(booking.task_id,)),)
        made = _moved(booking.made, plan)
        if made == booking.made:
            planner.settle(booking, bookings)
        elif plan.at > at:  # a reservation that is possible now is about to start
            return (TasksReserved(at=at, made=(made,)),)
    return ()


def _awaits_quota(state: ClusterState, booking: Booking, at: int) -> bool:
    """The time of its GPUs has come, but there is no quota. The GPUs would be idle: the reservation keeps quota alone
    until its task waits for GPUs again.
    """
    return 0 < booking.at <= at and bool(booking.made.places) and _lacks_quota(state, booking, at)


def _lacks_quota(state: ClusterState, booking: Booking, at: int) -> bool:
    line = booking.line
    refusal = admit(state, line, line.claim, access_of(state, line, booking.task_id, at))
    return refusal is not None and refusal.may_reserve


def _moved(known: Reservation, plan: Plan) -> Reservation:
    at = 0 if plan.at >= UNKNOWN else max(plan.at, known.made_at)
    return replace(known, places=plan.places, at=at)


def _is_allowed(state: ClusterState, line: Line, ahead: Ahead) -> bool:
    """No other rule refuses the task, and together with earlier reservations it is within the maximum of its pool and
    tenant.
    """
    if line.array_full:
        return False
    pool, account, claim = line.pool, line.account, line.claim
    milli = claim.milli + ahead.pool_milli
    if pool.pool is not None and milli > pool.limit_milli and not has_quota(state, pool, milli):
        return False
    if not account.limited:
        return True
    if tenant_budget(state, account, claim) is not None:
        return False
    if tenant_running(account, ahead.tenant_tasks) is not None:
        return False
    beyond = beyond_limits(account, claim.plus(ahead.tenant))
    return beyond.milli <= 0 and beyond.memory_mb <= 0


def _unless_alike(known: Reservation, plan: Plan) -> Plan:
    """Keeps the known time if the new one differs little."""
    if known.at and abs(plan.at - known.at) <= SLACK_MS:
        return Plan(known.at, known.places)
    return Plan(plan.at, known.places)


class Planner:
    """When and where a task starts, if running tasks end as expected and earlier reservations come first."""

    def __init__(self, state: ClusterState, at: int) -> None:
        self._state = state
        self._at = at
        self._cluster = Cluster(state, at)

    def anywhere(self, line: Line, before: Sequence[Booking]) -> Plan | None:
        """On the nodes that have room first; ties go by node id."""
        demand, taken = line.demand, self._taken(before)
        found: list[tuple[int, NodeId]] = []
        for free_at, node_id, room in self._candidates(demand):
            if len(found) == demand.nodes and (free_at, node_id) > found[-1]:
                break  # the other nodes have no room sooner
            seen = opening(room, demand, self._cluster, taken.get(node_id, ()))
            if seen is not None:
                insort(found, (seen.at, node_id))
                del found[demand.nodes :]
        if len(found) < demand.nodes:
            return None
        rooms = self._state.rooms.by_node
        return self._plan(
            line, times_on([rooms[node_id] for _, node_id in found], demand, self._cluster, taken)
        )

    def _candidates(self, demand: Demand) -> Iterable[Candidate]:
        """Nodes, each with a time before which it has no room for the demand, soonest first."""
        rooms = self._state.rooms
        if demand.gpus:
            cards = demand.gpus if demand.share_milli == WHOLE_MILLI else PART
            return rooms.by_opening(cards, self._cards_at)
        return [Candidate(0, node_id, room) for node_id, room in sorted(rooms.by_node.items())]

    def _cards_at(self, room: Room, gpus: int) -> int | None:
        return cards_at(room, gpus, self._cluster)

    def again(
        self, booking: Booking, before: Sequence[Booking], behind: Sequence[Booking], *, anywhere: bool
    ) -> Plan | None:
        """The same plan, unless it can be earlier on its nodes or would slip there. `anywhere`: also if it can be
        earlier elsewhere. The plan takes nothing that later reservations count on. An exception are its own GPUs where
        the others begin later: they were planned around it.
        """
        known, line = booking.made, booking.line
        if not known.places:
            return _unless_alike(known, Plan(self.quota_at(line, before)))
        own = {place.node_id: place.gpu_ids for place in known.places}
        ahead = [each for each in before if not self._is_ahead_of(booking, each)]
        sooner = [each for each in behind if begins_before(each, booking)]
        taken: dict[NodeId, list[Taken]] = {}
        self._take(taken, ahead + sooner, own)
        self._take(taken, [each for each in behind if each not in sooner], own, spares_own=True)
        nodes = self._nodes(booking)
        stays = here = None
        if len(nodes) == len(known.places):
            times = times_on(nodes, line.demand, self._cluster, taken)
            stays = self._plan(line, times, own)
            here = self._plan(line, times)
        if stays is not None and here is not None and stays.at <= here.at + SLACK_MS:
            here = _unless_alike(known, stays)
        slips = here is None or (here.at > known.at + SLACK_MS if known.at else here.at >= NEVER)
        if not slips and not anywhere:
            return here
        elsewhere = self.anywhere(line, [*before, *behind])
        if here is None or (elsewhere is not None and elsewhere.at + SLACK_MS < here.at):
            return elsewhere
        return here

    def quota_at(self, line: Line, before: Sequence[Booking]) -> int:
        """When its pool and its tenant have quota for it; 0: now."""
        state, claim, pool, account = self._state, line.claim, line.pool, line.account
        at, ahead = 0, ahead_of(line, before)
        milli = claim.milli + ahead.pool_milli
        if pool.pool is not None and not has_quota(state, pool, milli):
            at = self._freed_at(pool, pool.used_milli + milli - pool.limit_milli, 0)
        if not account.limited:
            return at
        beyond = beyond_limits(account, held_by(account).plus(claim).plus(ahead.tenant))
        return max(at, self._freed_at(account, beyond.milli, beyond.memory_mb))

    def _is_ahead_of(self, booking: Booking, other: Booking) -> bool:
        """The task ends before the other reservation begins."""
        at, other_at = booking.at, other.at
        return at > 0 and at + booking.line.lasts_ms <= other_at

    # plans that hold

    def awaits_nodes(self, booking: Booking) -> bool:
        """A node of the reservation has not contacted this scheduler yet. The reservation stands until the node is back
        or lost: a restart must not change a promised time.
        """
        nodes = self._state.nodes
        return any(nodes[place.node_id].unconfirmed_since > 0 for place in booking.made.places)

    def is_settled(self, booking: Booking) -> bool:
        """Neither its nodes nor their reservations changed since it was last planned, and its time has not come. A
        plan of quota alone is renewed when its time has come, and by full passes.
        """
        if not booking.made.places:
            return not booking.at or self._at < booking.at
        return self._state.bookings.is_settled(booking.task_id, self._at, self._versions(booking))

    def settle(self, booking: Booking, others: Sequence[Booking]) -> None:
        """The plan is the one that stands, so only its own nodes decided it."""
        state = self._state
        nodes = self._nodes(booking)
        leases = [lease_id for room in nodes for lease_id in room.leases]
        until = state.bookings.ends.valid_until(state, leases, self._at)
        for each in others:
            until = min(until, each.at or NEVER)  # a late reservation moves with time
        state.bookings.settle(booking.task_id, until, self._versions(booking))

    def _versions(self, booking: Booking) -> tuple[int, ...]:
        return tuple([room.version for room in self._nodes(booking)])

    def _nodes(self, booking: Booking) -> list[Room]:
        rooms = self._state.rooms.by_node
        return [rooms[place.node_id] for place in booking.made.places if place.node_id in rooms]

    # leaves

    def _plan(
        self,
        line: Line,
        nodes: list[tuple[NodeId, Times]] | None,
        own: Mapping[NodeId, tuple[GpuId, ...]] | None = None,
    ) -> Plan | None:
        """All of the nodes are needed, so the last one decides. `own`: only on these GPUs."""
        if nodes is None:
            return None
        found: list[tuple[int, NodeId, Opening]] = []
        for node_id, times in nodes:
            seen = opening_in(times, line.demand.gpus, None if own is None else own[node_id])
            if seen is None:
                return None
            found.append((seen.at, node_id, seen))
        found.sort(key=lambda each: each[1])
        latest = max([at for at, _, _ in found])
        unknown = [at - UNKNOWN for at, _, _ in found if UNKNOWN <= at < NEVER]
        if unknown and latest < NEVER:
            latest = UNKNOWN + sum(unknown)
        return Plan(latest, tuple([Place(node_id, seen.gpu_ids) for _, node_id, seen in found]))

    def _taken(self, before: Sequence[Booking]) -> dict[NodeId, list[Taken]]:
        """By node: what other reservations will hold there, and until when."""
        found: dict[NodeId, list[Taken]] = {}
        self._take(found, before, own=None)
        return found

    def _take(
        self,
        found: dict[NodeId, list[Taken]],
        others: Sequence[Booking],
        own: Mapping[NodeId, tuple[GpuId, ...]] | None,
        *,
        spares_own: bool = False,
    ) -> None:
        """`own`: only on these nodes, those of its own reservation. `spares_own`: the others take none of the GPUs that
        it holds there, and no cpus or ram.
        """
        for booking in others:
            for place in booking.made.places:
                node_id = place.node_id
                if own is not None and node_id not in own:
                    continue
                taken = taken_by(booking, place, self._at)
                if own is not None and spares_own:
                    rest = tuple([each for each in place.gpu_ids if each not in own[node_id]])
                    taken = Taken(rest, 0, 0, taken.at, taken.until)
                found.setdefault(node_id, []).append(taken)

    def _freed_at(self, holder: Holder, milli: int, memory_mb: int) -> int:
        """When leases of the pool or tenant have released this much."""
        if milli <= 0 and memory_mb <= 0:
            return 0
        for ends_at, lease_id in self._by_end(holder):
            lease = self._cluster.leases[lease_id]
            milli -= lease.gpu_milli
            memory_mb -= lease.gpu_memory_mb * len(lease.gpu_ids)
            if milli <= 0 and memory_mb <= 0:
                return ends_at
        return NEVER

    def _by_end(self, holder: Holder) -> Iterator[tuple[int, LeaseId]]:
        """The index knows for each lease a time before which it does not end. A lease comes after all those that may
        end sooner.
        """
        ends: list[tuple[int, LeaseId]] = []  # a heap
        for ending in self._state.bookings.ends.in_order(self._state, holder):
            while ends and ends[0][0] <= ending.not_before:
                yield heappop(ends)
            heappush(ends, (self._cluster.ends_at(ending.lease_id), ending.lease_id))
        while ends:
            yield heappop(ends)
