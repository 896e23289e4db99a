"""Who may have what is kept for a reservation: the task that holds it, tasks of a higher priority, and tasks that are
over before it is needed. The last is backfill: it delays nobody.

Of a reservation whose time nobody knows, that is whoever is over within `PATIENCE_MS`: it may come to wait so much
longer, and no more, for once the rest is known to end, so is its time.
"""

from __future__ import annotations

from heapq import nsmallest
from operator import itemgetter
from typing import Final, NamedTuple

from dgpu.core.events import Event
from dgpu.core.index.bookings import Chances, Held
from dgpu.core.index.line import Crowd, Line, Turn
from dgpu.core.index.room import Room, whole
from dgpu.core.index.spot import spot_in
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, NodeId, ShapeId, TaskId
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.task import Task
from dgpu.core.rules.admission import is_kept, within_limits
from dgpu.core.rules.durations import KILL_GRACE_MS, NEVER, RELEASE_MS, UNKNOWN, certain_ms, lasts_ms
from dgpu.core.rules.fit import rank
from dgpu.core.rules.gang import gang_at
from dgpu.core.rules.place import grant_at
from dgpu.core.state import ClusterState

PATIENCE_MS: Final = 3_600_000 + KILL_GRACE_MS + RELEASE_MS  # the default time limit of batch tasks
_MAX_LINES: Final = 16  # of one demand, in order
MAX_LOOKED_AT: Final = (
    256  # waiting tasks in one pass, for short ones among them; the next one goes on from there
)


class Access(NamedTuple):
    """The reservations that are not in a task's way."""

    open: frozenset[TaskId]
    own: TaskId | None = None  # it holds one itself
    later: frozenset[TaskId] = frozenset()  # those were made knowing that it comes first


class KeptGrant(NamedTuple):
    line: Line
    events: tuple[Event, ...]
    displaces: bool  # a reservation of lower priority


def grant_kept(state: ClusterState, crowd: Crowd, at: int) -> KeptGrant | None:
    """For the first in order of a demand that fits nowhere else. Where nobody may have what is kept, however much comes
    free of it, nobody is asked again until more may, and no rooms are looked at.
    """
    chances = _chances(state, at)
    if crowd.refused_kept >= chances.window_ms:
        return None
    crowd.beside = True
    candidates: list[tuple[Turn, Line, list[Task]]] = []
    within_ms = NEVER
    for line in crowd.lines.values():
        turn = line.turn()
        if turn is not None:
            tasks, none_within_ms = _candidates(state, line, chances)
            within_ms = min(within_ms, none_within_ms)
            if tasks:
                candidates.append((turn, line, tasks))
    granted = _first(state, crowd, nsmallest(_MAX_LINES, candidates, key=itemgetter(0)), chances)
    if granted is None and not candidates:
        crowd.refused_kept = within_ms
    return granted


def _first(
    state: ClusterState, crowd: Crowd, candidates: list[tuple[Turn, Line, list[Task]]], chances: Chances
) -> KeptGrant | None:
    demand, at = crowd.demand, chances.at
    rooms = _roomy(state, demand) if candidates else []
    if candidates and not _enough(state, demand, rooms):
        crowd.beside = False
        return None
    for _, line, tasks in candidates:
        claim = line.crowd.claim
        if not within_limits(state, line.account, claim) or is_kept(state, line.account, claim):
            continue
        for task in tasks:
            if demand.nodes == 1 and _waits_for_its_own(state, line, task, rooms, chances):
                continue
            access = access_of(state, task, line.level(task.id), at)
            events = _grant(state, task, demand, rooms, access, at)
            if events:
                return KeptGrant(line, events, _displaces(state, task, line.level(task.id), chances))
    return None


def _waits_for_its_own(
    state: ClusterState, line: Line, task: Task, rooms: list[Room], chances: Chances
) -> bool:
    """It may have nothing but its own reservation, and there is no room there yet."""
    own = state.reservations.get(task.id)
    if own is None or line.level(task.id) > chances.least_level or lasts_ms(state, task) <= chances.window_ms:
        return False
    return all(room.node_id != own.places[0].node_id for room in rooms)


def grant_kept_to(state: ClusterState, task: Task, demand: Demand, at: int) -> tuple[Event, ...]:
    """To this very task; () if it does not fit, even with what is kept for reservations as far as it may have that."""
    access = access_of(state, task, level_of(state, task.id), at)
    return _grant(state, task, demand, _roomy(state, demand), access, at)


def fits_without_reservations(state: ClusterState, demand: Demand) -> bool:
    return _enough(state, demand, _roomy(state, demand))


def in_the_way(state: ClusterState, task: Task, demand: Demand, at: int) -> list[tuple[Reservation, NodeId]]:
    """The reservations that keep a task out, where it would have room but for them; soonest first."""
    access = access_of(state, task, level_of(state, task.id), at)
    found: dict[TaskId, NodeId] = {}
    for room in _roomy(state, demand):
        for task_id in room.holds:
            if task_id != task.id and task_id not in access.open:
                found.setdefault(task_id, room.node_id)
    named = [(state.reservations[task_id], node_id) for task_id, node_id in found.items()]
    return sorted(named, key=lambda each: (each[0].at or UNKNOWN, each[0].task_id))


def access_of(state: ClusterState, task: Task, level: int, at: int) -> Access:
    lasts = lasts_ms(state, task)
    own = state.reservations.get(task.id)
    opened: list[TaskId] = []
    later: list[TaskId] = []
    for task_id, within_ms, other_level, turn in _chances(state, at).held if state.reservations else ():
        if lasts <= within_ms or other_level < level or task_id == task.id:
            opened.append(task_id)
        elif own is not None and other_level == level and by_time(own) < turn:
            later.append(task_id)
    return Access(frozenset(opened), None if own is None else task.id, frozenset(later))


def level_of(state: ClusterState, task_id: TaskId) -> int:
    return state.waiting.lines[state.tasks[task_id].shape_id].level(task_id)


def view(room: Room, access: Access) -> Room:
    """The room as a task sees it: without what is kept for others. Later reservations were made knowing that it comes
    first where its own is. Anywhere else it would delay them: with cpus and ram as with cards.
    """
    here = access.open | access.later if access.own in room.holds else access.open
    keeps: dict[GpuId, tuple[TaskId, ...]] = {}
    for gpu_id, keepers in room.keeps.items():
        passable = here if access.own in keepers else access.open
        if not passable.issuperset(keepers):
            keeps[gpu_id] = keepers
    holds = [hold for task_id, hold in room.holds.items() if task_id not in here]
    twin = room.copy()
    twin.hide(keeps, sum(hold.cpus_milli for hold in holds), sum(hold.ram_mb for hold in holds))
    return twin


def window_ms(reservation: Reservation, at: int) -> int:
    """What is over within this time delays it by nothing, or by no more than `PATIENCE_MS`. Never negative: a time in the
    past (its nodes were away, so it did not move) must not look like a refusal to the task that holds the reservation.
    """
    return max(0, reservation.at - at) if reservation.at else PATIENCE_MS


# leaves


def by_time(reservation: Reservation) -> tuple[int, int, TaskId]:
    """In the order in which they are going to start."""
    return (reservation.at or UNKNOWN, reservation.made_at, reservation.task_id)


def _roomy(state: ClusterState, demand: Demand) -> list[Room]:
    """Rooms that have room for it, but for reservations."""
    most_leases = state.settings.most_leases
    found = []
    for room in state.rooms.reserved.values():
        if len(room.idle) + len(room.kept) < demand.gpus and not room.used:
            continue
        if rank(whole(room, most_leases), demand, most_leases) is not None:
            found.append(room)
    return found


def _enough(state: ClusterState, demand: Demand, roomy: list[Room]) -> bool:
    if demand.nodes == 1 or not roomy:
        return bool(roomy)
    fitting = state.rooms.fitting(demand)  # a room with reservations may have enough beside them, too
    return len(fitting) + sum(room.node_id not in fitting for room in roomy) >= demand.nodes


def _chances(state: ClusterState, at: int) -> Chances:
    """The same for all who ask in a pass, while nothing changes about reservations."""
    known = state.bookings.chances
    if known is None or known.at != at:
        held = [
            Held(task_id, window_ms(each, at), level_of(state, task_id), by_time(each))
            for task_id, each in state.reservations.items()
        ]
        widest_ms, least_level = max([each.window_ms for each in held]), min([each.level for each in held])
        own: dict[ShapeId, list[TaskId]] = {}
        for task_id in state.reservations:
            own.setdefault(state.tasks[task_id].shape_id, []).append(task_id)
        known = state.bookings.chances = Chances(at, widest_ms, least_level, own, held)
    return known


def _candidates(state: ClusterState, line: Line, chances: Chances) -> tuple[list[Task], int]:
    """The head may go by its rank, those that hold a reservation for themselves, and others if they are short, each
    shorter than those before it: whoever is no shorter may have no more. And within how many ms none of all is over;
    -1: that is not known for ever, or not of all.
    """
    tasks, head, widest_ms = state.tasks, state.tasks[line.head], chances.window_ms
    known: dict[bytes, int] = {}
    shortest_ms = widest_ms + 1
    found: list[Task] = []
    lasts = lasts_ms(state, head, known)
    if lasts < shortest_ms or line.level(head.id) > chances.least_level:
        found.append(head)
        shortest_ms = min(shortest_ms, lasts)
    own = chances.own.get(line.shape_id)
    if own is not None:
        found += [tasks[task_id] for task_id in own if task_id != head.id]
        if head.id in own and head not in found:
            found.insert(0, head)
    within_ms, upto = line.passed_over
    if widest_ms > within_ms or upto <= line.head:
        within_ms, upto = NEVER, line.head
    passed, certain, head_ms = upto, certain_ms(head) > 0, lasts
    most = state.bookings.looks_left
    ready = line.ready_from(TaskId(upto + 1), most)
    state.bookings.looks_left -= len(ready)
    for task_id in ready:
        task = tasks[task_id]
        known_ms = certain_ms(task)
        lasts = known_ms or lasts_ms(state, task, known)
        if lasts < shortest_ms:
            found.append(task)
            shortest_ms = lasts
        certain = certain and lasts > widest_ms and known_ms > 0  # else it may be another time
        if certain:
            passed = task_id
            within_ms = min(within_ms, lasts - 1)
    line.passed_over = (within_ms, passed)
    return found, min(within_ms, head_ms - 1) if certain and len(ready) < most else -1


def _grant(
    state: ClusterState, task: Task, demand: Demand, rooms: list[Room], access: Access, at: int
) -> tuple[Event, ...]:
    if not access.open and access.own is None:
        return ()
    most_leases = state.settings.most_leases
    fitting: list[tuple[int, NodeId, Room]] = []
    for room in rooms:
        seen = room if access.open.isdisjoint(room.holds) else view(room, access)
        value = rank(seen, demand, most_leases)
        if value is not None:
            fitting.append((value, room.node_id, seen))
    if demand.nodes == 1:
        if not fitting:
            return ()
        return grant_at(state, task.id, spot_in(min(fitting, key=lambda each: each[:2])[2], demand), at)
    views = {node_id: seen for _, node_id, seen in fitting}
    ranked = [(value, node_id) for value, node_id, _ in fitting]
    ranked += [
        (value, node_id) for node_id, value in state.rooms.fitting(demand).items() if node_id not in views
    ]
    if len(ranked) < demand.nodes:
        return ()
    chosen = nsmallest(demand.nodes, ranked)
    by_node = state.rooms.by_node
    spots = [spot_in(views.get(node_id, by_node[node_id]), demand) for _, node_id in chosen]
    return gang_at(state, task.id, spots, at)


def _displaces(state: ClusterState, task: Task, level: int, chances: Chances) -> bool:
    lasts = lasts_ms(state, task)
    return any(
        each.task_id != task.id and each.level < level and lasts > each.window_ms for each in chances.held
    )
