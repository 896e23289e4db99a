"""Which node and which GPUs a waiting task gets: the best node beside reservations, else a node where the task may pass
reservations (see access).
"""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.core.events import Event, GangPlaced, TaskPlaced, TaskStarted
from dgpu.core.index.line import Claim, Line
from dgpu.core.index.room import Room, whole
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.refusals import ReservedFor
from dgpu.core.rules.access import Access, bookings_in_order, in_the_way, view
from dgpu.core.rules.durations import UNKNOWN, certain_ms, expected_ms
from dgpu.core.rules.fit import Spot, fits, rank, spot_in
from dgpu.core.rules.openings import Cluster, host_at, taken_by
from dgpu.core.state import ClusterState


def place(state: ClusterState, line: Line, access: Access, at: int) -> list[Spot]:
    """A spot for each node that a task of the line needs; empty if there is no room for all of them."""
    demand = line.demand
    if demand.whole_milli > state.rooms.idle_milli:
        return []
    spots = beside_reservations(state, demand)
    if not spots and state.reservations:
        spots = _among_reservations(state, demand, access, at)
    return spots


def beside_reservations(state: ClusterState, demand: Demand) -> list[Spot]:
    if demand.nodes > 1:
        return state.rooms.find_gang(demand)
    spot = state.rooms.find(demand)
    return [] if spot is None else [spot]


def reserved_for(state: ClusterState, demand: Demand, access: Access) -> ReservedFor | None:
    """The reservations alone that keep out a task for which `place` found no spot; names the soonest."""
    roomy = rooms_but_for_reservations(state, demand)
    if not has_room_but_for_reservations(state, demand, roomy):
        return None
    found: dict[TaskId, NodeId] = {}
    for room in roomy:
        for other in room.holds:
            if other not in access.passed:
                found.setdefault(other, room.node_id)
    if not found:
        return None
    made = [state.reservations[other] for other in found]
    first = min(made, key=lambda each: (each.at or UNKNOWN, each.task_id))
    return ReservedFor(
        task_id=first.task_id, node_id=found[first.task_id], at=first.at, reservations=len(found)
    )


def rooms_but_for_reservations(state: ClusterState, demand: Demand) -> list[Room]:
    """Rooms that would fit the demand without their reservations."""
    found = []
    for room in state.rooms.reserved():
        if len(room.idle) + len(room.kept) < demand.gpus and not room.used:
            continue
        if fits(whole(room), demand):
            found.append(room)
    return found


def has_room_but_for_reservations(state: ClusterState, demand: Demand, roomy: Sequence[Room]) -> bool:
    if demand.nodes == 1 or not roomy:
        return bool(roomy)
    fitting = state.rooms.fitting(demand)  # a room with reservations may have enough beside them
    return len(fitting) + sum(room.node_id not in fitting for room in roomy) >= demand.nodes


def _among_reservations(state: ClusterState, demand: Demand, access: Access, at: int) -> list[Spot]:
    counts_host = bool(demand.cpus_milli or demand.ram_mb)
    found: list[tuple[int, NodeId, Room]] = []
    for room in state.rooms.reserved():
        if len(room.idle) + len(room.kept) < demand.gpus and not room.used:
            continue
        if access.passed.isdisjoint(room.holds) and (
            not counts_host or (len(room.idle) < demand.gpus and not room.parts)
        ):
            continue  # it may use no more there than beside reservations, except cpus and ram until these begin
        seen = view(room, access)
        value = rank(seen, demand)
        if value is not None and _leaves_enough(state, room, demand, access, at):
            found.append((value, room.node_id, seen))
    if demand.nodes > 1:
        seen_there = {node_id for _, node_id, _ in found}
        by_node = state.rooms.by_node
        found += [
            (value, node_id, by_node[node_id])
            for node_id, value in state.rooms.fitting(demand).items()
            if node_id not in seen_there
        ]
    if len(found) < demand.nodes:
        return []
    found.sort(key=lambda each: each[:2])
    return [spot_in(room, demand) for _, _, room in found[: demand.nodes]]


def _leaves_enough(state: ClusterState, room: Room, demand: Demand, access: Access, at: int) -> bool:
    """Whether each reservation that the task may not pass still has its cpus and ram when it begins."""
    names = in_the_way(room, access)
    if not names or not (demand.cpus_milli or demand.ram_mb):
        return True
    taken = [
        taken_by(booking, each, at)
        for booking in bookings_in_order(state, at)
        if booking.task_id in names
        for each in booking.made.places
        if each.node_id == room.node_id
    ]
    return host_at(room, demand, Cluster(state, at), taken) == 0


# placements as claims and events


def claim_of_spots(spots: Sequence[Spot]) -> Claim:
    milli = memory_mb = 0
    for spot in spots:
        milli += spot.share_milli * len(spot.cards)
        memory_mb += spot.gpu_memory_mb * len(spot.cards)
    return Claim(milli, memory_mb)


def granted(state: ClusterState, task_id: TaskId, spots: Sequence[Spot], at: int) -> tuple[Event, ...]:
    """A lease for each spot. An allocation starts with its lease."""
    task = state.tasks[task_id]
    expected = 0
    if state.run_times and not certain_ms(task):
        expected = expected_ms(state.run_times, state.shapes[task.shape_id], task.detail)
    ranks = tuple(
        [
            TaskPlaced(
                at=at,
                task_id=task_id,
                lease_id=LeaseId(state.next_lease_id + rank),
                attempt=task.attempt + 1,
                node_id=spot.room.node_id,
                gpu_ids=tuple([card.id for card in spot.cards]),
                share_milli=spot.share_milli,
                gpu_memory_mb=spot.gpu_memory_mb,
                expected_ms=expected,
            )
            for rank, spot in enumerate(spots)
        ]
    )
    placed: Event = ranks[0]
    if state.shapes[task.shape_id].nodes > 1:
        placed = GangPlaced(at=at, task_id=task_id, ranks=ranks)
    if not task.allocation:
        return (placed,)
    started = [TaskStarted(at=at, task_id=task_id, lease_id=rank.lease_id, started_at=at) for rank in ranks]
    return (placed, *started)


def granted_slot(state: ClusterState, task_id: TaskId, worker: Lease, at: int) -> TaskPlaced:
    """The lease of a function call: no GPUs of its own."""
    return TaskPlaced(
        at=at,
        task_id=task_id,
        lease_id=state.next_lease_id,
        attempt=state.tasks[task_id].attempt + 1,
        node_id=worker.node_id,
        gpu_ids=(),
        worker=worker.id,
    )
