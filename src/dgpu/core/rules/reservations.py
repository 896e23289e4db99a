"""Who holds a reservation. Where and for when: see draft.

The first tasks in order that no node has room for, as many as the settings say. A task that its pool's quota, its tenant
or its array would keep back anyway holds none. A reservation stands until its task starts: it moves when it can be
earlier, or when what it waits for does not end as it should. It gives way to tasks of a higher priority, and to
nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from dgpu.core.events import TasksReserved
from dgpu.core.index.lane import Lane
from dgpu.core.index.line import LAST_OF_ALL, NO_SHAPE, NOBODY, Claim, Crowd, CrowdKey, Line, Turn
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId, TaskId, TenantId
from dgpu.core.model.task import Pool
from dgpu.core.rules.admission import has_quota, is_kept, within_limits
from dgpu.core.rules.backfill import level_of
from dgpu.core.rules.draft import Draft
from dgpu.core.state import ClusterState

LOOK_AGAIN_MS: Final = 10_000  # something may have become free elsewhere: looked for only so often
_MAX_TRIES: Final = 32  # plans in one go
_LONG_QUEUE: Final = 100
_NOTHING: Final = Claim(0, 0)


def reservations_due(state: ClusterState, at: int) -> bool:
    if not state.reservations:
        return bool(state.settings.reservations) and _wants_more(state, at) and not _all_alike(state)
    if state.bookings.admitted_until != state.next_task_id:
        # Who came may need the quota that a reservation counts on.
        state.bookings.admitted_until = state.next_task_id
        note_admissions(state)
    if not state.settings.reservations or state.rooms.unsettled or _wants_more(state, at):
        return True
    return at - state.bookings.looked_at >= LOOK_AGAIN_MS


def _wants_more(state: ClusterState, at: int) -> bool:
    """Somebody may hold a reservation who does not, or should no longer."""
    bookings = state.bookings
    return state.waiting.overtaken or (bookings.due and not bookings.rests(at, state.next_task_id))


def note_admissions(state: ClusterState) -> None:
    """After grants: a reservation that quota or limits no longer allow blocks nobody."""
    if not state.tenants and _are_within_quota(state):
        return
    tally = _Tally(state)
    for _, _, task_id in _known(state, state.reservations):
        line = state.waiting.lines[state.tasks[task_id].shape_id]
        if line.barred or not tally.admits(line):
            state.bookings.due = True
            state.bookings.fruitless = None  # at once: it would keep others back
            return
        tally.add(line)


def _are_within_quota(state: ClusterState) -> bool:
    """All of them at once; if not, one of them may still be within it."""
    lines, tasks, claimed = state.waiting.lines, state.tasks, dict[Lane, int]()
    for task_id in state.reservations:
        line = lines[tasks[task_id].shape_id]
        crowd = line.crowd
        if line.barred or line.shape.array_id:
            return False
        claimed[crowd.lane] = claimed.get(crowd.lane, 0) + crowd.milli
    return all(has_quota(state, lane, milli) for lane, milli in claimed.items())


def replan(state: ClusterState, at: int) -> tuple[TasksReserved, ...]:
    """What has changed about all reservations. Nothing is applied yet."""
    if state.settings.reservations and _awaits_nodes(state):
        return ()
    bookings, most = state.bookings, state.settings.reservations
    everything = at - bookings.looked_at >= LOOK_AGAIN_MS
    # A grant that took what was kept may have been on any of their nodes.
    unsettled = [*(state.rooms.reserved if bookings.displaced else state.rooms.unsettled)]
    state.rooms.unsettled.clear()
    if most and not everything and not bookings.displaced and not _wants_more(state, at):
        settled = _settle(state, at, unsettled)
        if settled is not None:
            return settled
    in_place = not unsettled and not everything and not bookings.displaced
    bookings.due = bookings.displaced = state.waiting.overtaken = False
    if in_place and _nobody_wants_more(state, at):
        state.waiting.last_reserved = LAST_OF_ALL
        bookings.fruitless = (at, state.next_task_id)
        return ()
    if everything:
        bookings.looked_at = at
    draft = Draft(state, at, unsettled, anywhere=everything)
    least = _fill(draft)
    if not most:
        state.waiting.last_reserved = None
    elif least is None or len(draft.plans) < most:
        state.waiting.last_reserved = LAST_OF_ALL
    else:  # what is held gives way to a higher level only
        state.waiting.last_reserved = (-least, -1, NOBODY, NO_SHAPE)
    planned = draft.events()
    in_vain = not planned and len(draft.plans) < most
    bookings.fruitless = (at, state.next_task_id) if in_vain else None
    return planned


def _awaits_nodes(state: ClusterState) -> bool:
    """A node of a reservation has not contacted this scheduler yet. The reservation stands until the node is back or
    lost: a restart must not change what was promised.
    """
    rooms = state.rooms
    return bool(rooms.unconfirmed) and not rooms.unconfirmed.keys().isdisjoint(rooms.reserved)


def _nobody_wants_more(state: ClusterState, at: int) -> bool:
    """Not all that may be held is, and nobody can be found for the rest: mostly the next in order is still to be tried.
    Those held stand as they are. Seen at a glance: where tenants have limits it is not.
    """
    held = state.reservations
    if not held or len(held) >= state.settings.reservations or state.tenants:
        return False
    if any(each.at and each.at <= at for each in held.values()) or not _are_within_quota(state):
        return False
    return not any(
        line.turn() is not None
        for lane in state.waiting.lanes.values()
        for crowd in lane.crowds.values()
        if crowd.blocked and not lane.is_woken(crowd)
        for line in crowd.lines.values()
    )


def _settle(state: ClusterState, at: int, unsettled: list[NodeId]) -> tuple[TasksReserved, ...] | None:
    """Something ended on nodes of reservations, and nothing else is new: who holds them stays, and only those there
    can be earlier. None: that is not all.
    """
    draft = Draft(state, at, unsettled, anywhere=False)
    before = len(draft.touched)
    by_node = state.rooms.by_node
    there = {task_id for node_id in unsettled if node_id in by_node for task_id in by_node[node_id].holds}
    for _, _, task_id in _known(state, there):
        line = state.waiting.lines[state.tasks[task_id].shape_id]
        draft.plan(task_id, line, state.reservations[task_id])
        if line.barred or draft.dropped or len(draft.touched) > before:
            return None
    return draft.events()


def _fill(draft: Draft) -> int | None:
    """As many as may be held; the lowest level of them. A task that no node could ever hold as things are takes nobody's
    place.
    """
    state, most = draft.state, draft.state.settings.reservations
    tally = _Tally(state)
    alike = _all_alike(state)
    kept: set[TaskId] = set()
    hopeless: set[Demand] = set()
    least: int | None = None
    tries = 0
    for task_id, line in _wanted(state) if most else ():
        demand = line.crowd.demand
        if task_id in kept:
            continue
        if line.barred or demand in hopeless or not tally.admits(line):
            draft.drop(task_id)  # whoever follows need not plan around it
            continue
        known = state.reservations.get(task_id)
        if known is None and alike:
            continue
        if known is None or draft.is_stale(known):
            tries += 1
            draft.plan(task_id, line, known)
        if task_id in draft.plans:
            tally.add(line)
            kept.add(task_id)
            least = line.level(task_id)
        else:
            hopeless.add(demand)
        if len(kept) >= most or tries >= _MAX_TRIES:
            break
    for task_id in [each for each in draft.plans if each not in kept]:
        draft.drop(task_id)
    return least


def reserve_head(state: ClusterState, line: Line, at: int) -> tuple[TasksReserved, ...]:
    """A task was just found to fit nowhere: before anybody behind it is tried, it gets what it will need."""
    most, head = state.settings.reservations, line.head
    if head in state.reservations:
        if len(state.reservations) < most:  # the next of its kind may stand before those still to be tried
            state.bookings.due, state.bookings.fruitless = True, None
        return ()
    turn, last = line.turn(), state.waiting.last_reserved
    if turn is None or (last is not None and turn >= last):
        return ()
    if len(state.reservations) >= most:
        state.bookings.due, state.bookings.fruitless = True, None
        return replan(state, at)
    if _all_alike(state):
        state.bookings.due = True
        return ()
    if _wants_more(state, at):  # those refused before it come first
        return replan(state, at)
    tally = _Tally(state)
    for task_id in state.reservations:
        tally.add(state.waiting.lines[state.tasks[task_id].shape_id])
    if not tally.admits(line):
        return ()
    draft = Draft(state, at, anywhere=False)
    draft.plan(head, line, None)
    return draft.events()


def _all_alike(state: ClusterState) -> bool:
    """A long queue of one demand: nobody in it can run ahead of another, and to plan with every start would cost more
    than all else.
    """
    waiting = state.waiting
    return waiting.count > _LONG_QUEUE and sum(len(lane.crowds) for lane in waiting.lanes.values()) == 1


# who


class _Tally:
    """What the reservations counted so far will take of quotas and limits, with what is in use now."""

    __slots__ = ("arrays", "milli", "state", "tasks", "tenants")

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.milli: dict[Pool | None, int] = {}
        self.tenants: dict[TenantId, Claim] = {}
        self.tasks: dict[TenantId, int] = {}
        self.arrays: dict[TaskId, int] = {}

    def add(self, line: Line) -> None:
        claim, tenant_id, pool = line.crowd.claim, line.shape.tenant_id, line.crowd.lane.pool
        self.milli[pool] = self.milli.get(pool, 0) + claim.milli
        before = self.tenants.get(tenant_id, _NOTHING)
        self.tenants[tenant_id] = Claim(before.milli + claim.milli, before.memory_mb + claim.memory_mb)
        self.tasks[tenant_id] = self.tasks.get(tenant_id, 0) + 1
        if line.shape.array_id:
            self.arrays[line.shape.array_id] = self.arrays.get(line.shape.array_id, 0) + 1

    def admits(self, line: Line) -> bool:
        state, shape, account = self.state, line.shape, line.account
        claim, lane = line.crowd.claim, line.crowd.lane
        if not has_quota(state, lane, claim.milli + self.milli.get(lane.pool, 0)):
            return False
        if shape.array_id:
            running = state.waiting.arrays.get(shape.array_id, 0) + self.arrays.get(shape.array_id, 0)
            if running >= shape.array_limit:
                return False
        if not state.tenants:
            return True
        ahead = self.tenants.get(shape.tenant_id, _NOTHING)
        both = Claim(claim.milli + ahead.milli, claim.memory_mb + ahead.memory_mb)
        tenant = account.tenant
        most = None if tenant is None else tenant.max_running
        if most is not None and account.running + self.tasks.get(shape.tenant_id, 0) >= most:
            return False
        return within_limits(state, account, both) and not is_kept(state, account, claim)


def _known(state: ClusterState, task_ids: Iterable[TaskId]) -> list[tuple[int, int, TaskId]]:
    """Those that hold one, in the order in which they do."""
    made = state.reservations
    return sorted([(-level_of(state, task_id), made[task_id].made_at, task_id) for task_id in task_ids])


def _wanted(state: ClusterState) -> Iterator[tuple[TaskId, Line]]:
    """In order of level, those that hold one already first: what was promised is not taken back for a new one of the
    same priority. Who stands too low to go before any of them is not even put in order until then.
    """
    known = _known(state, state.reservations)
    lowest = known[-1][0] if known else None
    if lowest is not None:
        fresh = _in_order(state, _above(state, lowest))
        candidate = next(fresh, None)
        for level, _, task_id in known:
            while candidate is not None and candidate[0][0] < level:
                yield candidate[1], candidate[2]
                candidate = next(fresh, None)
            yield task_id, state.waiting.lines[state.tasks[task_id].shape_id]
    for turn, task_id, line in _in_order(state, state.waiting.blocked_lines()):
        if lowest is None or turn[0] >= lowest:
            yield task_id, line


def _above(state: ClusterState, lowest: int) -> list[tuple[Turn, Line]]:
    """Of lines that were refused: those whose head stands above a (negated) level."""
    ages = state.settings.ageing_ms > 0
    return [
        (turn, line)
        for lane in state.waiting.lanes.values()
        for crowd in lane.crowds.values()
        if crowd.blocked
        for line in crowd.lines.values()
        if (ages or -line.priority < lowest) and (turn := line.turn()) is not None and turn[0] < lowest
    ]


def _in_order(state: ClusterState, lines: list[tuple[Turn, Line]]) -> Iterator[tuple[Turn, TaskId, Line]]:
    """Waiting tasks of demands that fit nowhere, in order, without those that hold a reservation."""
    heap = [(turn, 0, line) for turn, line in lines]
    most = state.settings.reservations + len(state.reservations)
    heapify(heap)
    tally = _Tally(state)
    woken: dict[CrowdKey, bool] = {}
    while heap:
        turn, number, line = heap[0]
        task_id = turn[2]
        if not number and (not tally.admits(line) or _is_woken(line.crowd, woken)):
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


def _is_woken(crowd: Crowd, known: dict[CrowdKey, bool]) -> bool:
    if crowd.key not in known:
        known[crowd.key] = crowd.lane.is_woken(crowd)
    return known[crowd.key]
