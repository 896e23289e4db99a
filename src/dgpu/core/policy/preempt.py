"""Which borrowed batch tasks are asked to stop, so that online tasks get what is theirs.

Only with `quota.reclaim: stop`. For each online task that waits for GPUs, is within its pool's own quota and has no stops
under way for it: the node on which the least work is lost. What is stopped there was granted beyond the quota of its
pool; of several, those that lose the least work (GPUs times time) go first, so the newest and smallest. No stop could be
left out. Stopped tasks are requeued, and cannot borrow again while an online task needs the quota: so it ends.

Allocations, gangs and tasks that share a GPU are not stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from dgpu.core.demand import Demand
from dgpu.core.events import TaskStopRequested
from dgpu.core.ids import NO_TASK, GpuId, NodeId, TaskId, task_name
from dgpu.core.lease import Lease
from dgpu.core.line import Line
from dgpu.core.policy.fit import accepts, holds
from dgpu.core.policy.quota import is_kept, settle_pools, within_limits
from dgpu.core.quota import QuotaMode, Reclaim
from dgpu.core.room import Room
from dgpu.core.state import ClusterState
from dgpu.core.task import WHOLE_MILLI, Pool

RECLAIMED: Final = "reclaimed"
MOST_LOOKED_AT: Final = 2_000  # of the newest leases
MOST_HELPED: Final = 64  # waiting tasks in one pass


class _Plan:
    """What earlier tasks of this pass were promised."""

    def __init__(self, left_milli: int) -> None:
        self.left_milli = left_milli  # borrowed, and not asked for yet
        self.cards: set[GpuId] = set()
        self.leases: set[int] = set()
        self.task_id = NO_TASK  # for whom a place is looked for


class _Choice(NamedTuple):
    lost: int
    milli: int
    age: int  # of several with equal loss the newest
    node_id: NodeId
    leases: list[Lease]
    cards: list[GpuId]


def stops_due(state: ClusterState, at: int) -> tuple[TaskStopRequested, ...]:
    if state.quota.reclaim is not Reclaim.STOP or state.quota.mode is not QuotaMode.BORROW:
        return ()
    settle_pools(state)
    online, batch = state.waiting.lanes[Pool.ONLINE], state.waiting.lanes[Pool.BATCH]
    leaving = sum(state.leases[lease_id].gpu_milli for lease_id in state.reclaims)
    plan = _Plan(batch.used_milli - batch.limit_milli - leaving)
    spare = online.limit_milli - online.used_milli
    if plan.left_milli <= 0 or spare <= 0 or not online.ready:
        return ()
    helped = set(state.reclaims.values())
    # What was asked for in favour of a task that no longer waits goes to the next.
    loose = sum(
        state.leases[lease_id].gpu_milli
        for lease_id, task_id in state.reclaims.items()
        if task_id not in state.tasks or state.tasks[task_id].lease_id or state.tasks[task_id].status.is_final
    )
    stops: list[TaskStopRequested] = []
    for task_id, line in _in_need(state):
        milli = line.crowd.milli
        if milli > spare:
            continue
        spare -= milli
        if task_id in helped:
            continue
        if loose >= milli:
            loose -= milli
            continue
        plan.task_id = task_id
        stops += [_stop(lease, task_id, at) for lease in _victims(state, line.crowd.demand, plan, at)]
        if plan.left_milli <= 0 or spare <= 0:
            break
    return tuple(stops)


def _stop(lease: Lease, task_id: TaskId, at: int) -> TaskStopRequested:
    return TaskStopRequested(
        at=at,
        task_id=lease.task_id,
        lease_id=lease.id,
        reason=RECLAIMED,
        error=f"stopped so that {task_name(task_id)} gets the quota of the online pool; it waits for its next turn",
        for_task=task_id,
    )


def _in_need(state: ClusterState) -> Iterator[tuple[TaskId, Line]]:
    """Online tasks that wait for GPUs, in order; a bounded number."""
    lines = [
        line
        for line in state.waiting.lanes[Pool.ONLINE].ready.values()
        if within_limits(state, line.account, line.crowd.claim)
        and not is_kept(state, line.account, line.crowd.claim)
    ]
    waiting = [
        (-line.level(task_id), line.account.share, task_id, line)
        for line in lines
        for task_id in islice(line.ready, MOST_HELPED)
    ]
    waiting.sort(key=lambda each: each[:3])
    for _, _, task_id, line in waiting[:MOST_HELPED]:
        yield task_id, line


def _victims(state: ClusterState, demand: Demand, plan: _Plan, at: int) -> list[Lease]:
    candidates: dict[NodeId, list[Lease]] = {}
    for lease in islice(reversed(state.leases.values()), MOST_LOOKED_AT):
        if lease.id not in plan.leases and _may_stop(state, lease):
            candidates.setdefault(lease.node_id, []).append(lease)
    rooms = candidates if demand.nodes == 1 else state.rooms.by_node
    found = (_choose(state, node_id, demand, candidates.get(node_id, []), plan, at) for node_id in rooms)
    choices = sorted((choice for choice in found if choice is not None), key=lambda choice: choice[:4])
    choices = choices[: demand.nodes]
    milli = sum(choice.milli for choice in choices)
    if len(choices) < demand.nodes or milli > plan.left_milli:
        return []
    plan.left_milli -= milli
    for choice in choices:
        plan.cards.update(choice.cards)
        plan.leases.update(lease.id for lease in choice.leases)
    return [lease for choice in choices for lease in choice.leases]


def _may_stop(state: ClusterState, lease: Lease) -> bool:
    if lease.stopping or not lease.gpu_ids or lease.share_milli < WHOLE_MILLI:
        return False
    task = state.tasks[lease.task_id]
    if task.allocation or task.cancelling or task.id in state.gangs:
        return False
    return state.shapes[task.shape_id].pool is Pool.BATCH


def _choose(
    state: ClusterState, node_id: NodeId, demand: Demand, leases: list[Lease], plan: _Plan, at: int
) -> _Choice | None:
    """The leases whose end makes the demand fit on this node, with the least work lost; None if that cannot be."""
    room = state.rooms.by_node[node_id]
    if not room.ready or not holds(room.labels, demand.constraints):
        return None
    own = [card for card in room.kept if plan.task_id in room.keeps[card.id]]  # by its reservation
    idle = [card.id for card in room.idle + own if card.id not in plan.cards and accepts(card, demand)]
    short = demand.gpus - len(idle)
    by_loss = sorted(leases, key=lambda lease: (_lost(lease, at), -lease.id))
    useful = [lease for lease in by_loss if _freed(room, lease, demand)]
    chosen: list[Lease] = []
    while short > 0:
        # One that is no more than needed is better than one that frees too much.
        fitting = [lease for lease in useful if len(_freed(room, lease, demand)) <= short]
        best = fitting[0] if fitting else min(useful, key=lambda lease: len(lease.gpu_ids), default=None)
        if best is None:
            return None
        useful.remove(best)
        chosen.append(best)
        short -= len(_freed(room, best, demand))
    for lease in by_loss:
        if _has_host(state, room, demand, chosen):
            break
        if lease not in chosen:
            chosen.append(lease)
    if not _has_host(state, room, demand, chosen):
        return None
    chosen = _needed(state, room, demand, chosen, len(idle))
    cards = idle[: demand.gpus] + [gpu_id for lease in chosen for gpu_id in lease.gpu_ids]
    milli = sum(lease.gpu_milli for lease in chosen)
    age = -max((lease.id for lease in chosen), default=0)
    return _Choice(sum(_lost(lease, at) for lease in chosen), milli, age, node_id, chosen, cards)


def _needed(state: ClusterState, room: Room, demand: Demand, chosen: list[Lease], idle: int) -> list[Lease]:
    """Leaves out, from the dearest on, whatever is not needed after all."""
    kept = list(chosen)
    for lease in reversed(chosen):
        rest = [each for each in kept if each is not lease]
        freed = sum(len(_freed(room, each, demand)) for each in rest)
        if idle + freed >= demand.gpus and _has_host(state, room, demand, rest):
            kept = rest
    return kept


def _freed(room: Room, lease: Lease, demand: Demand) -> list[GpuId]:
    """Its cards that would do."""
    cards = [room.cards.get(gpu_id) for gpu_id in lease.gpu_ids]
    return [card.id for card in cards if card is not None and accepts(card, demand)]


def _has_host(state: ClusterState, room: Room, demand: Demand, ending: list[Lease]) -> bool:
    cpus_milli = room.cpus_free_milli + sum(lease.cpus_milli for lease in ending)
    ram_mb = room.ram_free_mb + sum(lease.ram_mb for lease in ending)
    return (
        (not demand.cpus_milli or cpus_milli >= demand.cpus_milli)
        and (not demand.ram_mb or ram_mb >= demand.ram_mb)
        and len(room.leases) - len(ending) < state.settings.most_leases
    )


def _lost(lease: Lease, at: int) -> int:
    return lease.gpu_milli * max(0, at - lease.granted_at)
