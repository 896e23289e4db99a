"""Which borrowed batch tasks are asked to stop, so that online tasks get the quota of their pool.

Applies only with `quota.reclaim: stop`. Each online task that waits for GPUs within its pool's own quota is served in
order, on the node where the least work is lost. Idle GPUs and GPUs of tasks already being stopped count first, unless
earlier tasks need them. Only tasks granted beyond the quota of their pool are stopped, the ones that lose the least
work (GPUs times time) first: the newest and smallest. Every stop is necessary,
also beside the stops for later tasks.

A stopped task is requeued, and cannot borrow again while an online task needs the quota. The quota is a number of GPUs:
the task may still return to the same GPU if the idle GPUs do not suit the waiting task. It is not stopped for that task
again, so this cannot repeat.

Allocations, gangs and tasks that share a GPU are not stopped.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from dgpu.core.events import TaskStopRequested
from dgpu.core.index.limits import settle_pools
from dgpu.core.index.line import Claim, Line
from dgpu.core.index.room import STATUSES, Card, Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, TenantId, task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.quota import QuotaMode, Reclaim
from dgpu.core.model.task import WHOLE_MILLI, Pool
from dgpu.core.rules.admission import guarantees, tenant_limits, tenant_running
from dgpu.core.rules.fit import accepts, holds, milli_on, reserved_mb
from dgpu.core.state import ClusterState

RECLAIMED: Final = "reclaimed"
_UNCONFIRMED: Final = STATUSES.index(GpuStatus.UNCONFIRMED)
MAX_LOOKED_AT: Final = 2_000  # of the newest leases
MAX_HELPED: Final = 64  # waiting tasks in one pass


class _Plan:
    """Stops in progress, and the GPUs promised to earlier tasks."""

    def __init__(self, left_milli: int, only: frozenset[LeaseId] | None) -> None:
        self.left_milli = left_milli  # borrowed, and not yet asked to stop
        self.ending: dict[NodeId, list[Lease]] = {}
        self.stopped_for: dict[TaskId, list[NodeId]] = {}  # nodes with stops in progress for a task
        self.promised: dict[NodeId, list[Demand]] = {}
        self.cards: set[GpuId] = set()  # promised
        self.parts: dict[GpuId, int] = {}  # the rest of a GPU on which a share was promised
        self.claims: dict[TenantId, list[Claim]] = {}  # of tasks that have all GPUs they need
        self._only = only  # None: any lease may be stopped
        self._candidates: dict[NodeId, list[Lease]] | None = None

    def candidates(self, state: ClusterState) -> dict[NodeId, list[Lease]]:
        """Leases that may be stopped, by node, newest first. Computed once, and only if a task needs a stop."""
        if self._candidates is None:
            self._candidates = {}
            for lease in islice(reversed(state.leases.values()), MAX_LOOKED_AT):
                if _is_stoppable(state, lease) and (self._only is None or lease.id in self._only):
                    self._candidates.setdefault(lease.node_id, []).append(lease)
        return self._candidates

    def admits(self, seeker: _Seeker) -> bool:
        """Whether the task is within the limits of its tenant, together with the earlier tasks."""
        account, claim = seeker.line.account, seeker.line.claim
        claims = self.claims.get(account.tenant_id)
        if not claims:
            return True
        if tenant_running(account, len(claims)) is not None:
            return False
        milli = claim.milli + sum([each.milli for each in claims])
        memory_mb = claim.memory_mb + sum([each.memory_mb for each in claims])
        return tenant_limits(seeker.state, account, Claim(milli, memory_mb)) is None

    def promise(self, choice: _Choice, demand: Demand, room: Room) -> None:
        self.left_milli -= choice.milli
        self.ending.setdefault(choice.node_id, []).extend(choice.leases)
        if self._candidates is not None:
            for lease in choice.leases:
                self._candidates[choice.node_id].remove(lease)
        self.promised.setdefault(choice.node_id, []).append(demand)
        self.cards.update(choice.cards)
        if demand.share_milli < WHOLE_MILLI:
            (gpu_id,) = choice.cards
            takes = milli_on(demand, room.cards[gpu_id].usable_mb)
            self.parts[gpu_id] = self.parts.get(gpu_id, WHOLE_MILLI) - takes


class _Seeker(NamedTuple):
    """An online task that needs GPUs."""

    state: ClusterState
    task_id: TaskId
    line: Line
    spare_milli: int  # of its pool's quota

    def may_stop(self, lease: Lease) -> bool:
        """A task that was stopped and started again while this one waited is not stopped again: that could repeat
        forever.
        """
        victim = self.state.tasks[lease.task_id]
        came_back = victim.attempt - 1 > victim.retries
        return not came_back or lease.granted_at < self.state.tasks[self.task_id].created_at

    def takes(self, card: Card) -> bool:
        """Whether the GPU suits. What a share takes of its tenant's limits depends on the GPU."""
        demand = self.line.demand
        if not accepts(card, demand):
            return False
        if demand.share_milli == WHOLE_MILLI:
            return True
        claim = Claim(milli_on(demand, card.usable_mb), reserved_mb(demand, card.usable_mb))
        return claim.milli <= self.spare_milli and tenant_limits(self.state, self.line.account, claim) is None


class _Choice(NamedTuple):
    lost: int
    milli: int
    age: int  # with equal loss, the newest is chosen
    node_id: NodeId
    leases: list[Lease]
    cards: list[GpuId]


class _Planned(NamedTuple):
    stops: tuple[TaskStopRequested, ...]
    helped: list[TaskId]
    has_surplus: bool  # some task gets more GPUs than it needs


def stops_due(state: ClusterState, at: int) -> tuple[TaskStopRequested, ...]:
    if state.quota.reclaim is not Reclaim.STOP or state.quota.mode is not QuotaMode.BORROW:
        return ()
    if state.rooms.counts[_UNCONFIRMED]:
        return ()  # nodes with idle GPUs may reconnect within seconds: stopping work for them would be a loss
    settle_pools(state)
    if _borrowed_milli(state) <= 0 or _spare_milli(state) <= 0 or not state.queue.pools[Pool.ONLINE].ready:
        return ()
    in_need = _in_need(state)
    helped = set(state.reclaims.values())
    if helped.issuperset([task_id for task_id, _ in in_need]):
        return ()  # common while stopped tasks release their GPUs
    planned = _planned(state, in_need, at, None)
    for stop in planned.stops if planned.has_surplus else ():
        # A lease with more GPUs than its task needs may serve an earlier task too, whose own stop is then needless.
        rest = frozenset([each.lease_id for each in planned.stops if each.lease_id != stop.lease_id])
        fewer = _planned(state, in_need, at, rest)
        if fewer.helped == planned.helped:
            planned = fewer
    return planned.stops


def _borrowed_milli(state: ClusterState) -> int:
    """GPUs that batch tasks hold beyond their quota and were not yet asked for."""
    batch = state.queue.pools[Pool.BATCH]
    leaving = sum([state.leases[lease_id].gpu_milli for lease_id in state.reclaims])
    return batch.used_milli - batch.limit_milli - leaving


def _spare_milli(state: ClusterState) -> int:
    online = state.queue.pools[Pool.ONLINE]
    return online.limit_milli - online.used_milli


def _planned(
    state: ClusterState, in_need: list[tuple[TaskId, Line]], at: int, only: frozenset[LeaseId] | None
) -> _Planned:
    """Serves the tasks in order. `only`: the leases that may be stopped; None: any."""
    plan, spare = _Plan(_borrowed_milli(state), only), _spare_milli(state)
    for lease_id in state.reclaims:
        lease = state.leases[lease_id]
        plan.ending.setdefault(lease.node_id, []).append(lease)
        plan.stopped_for.setdefault(lease.stop_for, []).append(lease.node_id)
    stops: list[TaskStopRequested] = []
    helped: list[TaskId] = []
    has_surplus = False
    for task_id, line in in_need:
        milli = line.claim.milli
        if milli > spare:
            continue
        seeker = _Seeker(state, task_id, line, spare)
        if not plan.admits(seeker):
            continue
        spare -= milli
        victims = _victims(seeker, plan, at)
        if victims is not None:
            helped.append(task_id)
            stops += [_stop(lease, task_id, at) for lease in victims]
            has_surplus = has_surplus or sum([lease.gpu_milli for lease in victims]) > milli
            plan.claims.setdefault(line.account.tenant_id, []).append(line.claim)
        if spare <= 0:  # without `left_milli`, a task may still get the rest of a stopped lease
            break
    return _Planned(tuple(stops), helped, has_surplus)


def _stop(lease: Lease, task_id: TaskId, at: int) -> TaskStopRequested:
    return TaskStopRequested(
        at=at,
        task_id=lease.task_id,
        lease_id=lease.id,
        reason=RECLAIMED,
        error=f"stopped so that {task_name(task_id)} gets the quota of the online pool; it waits for its next turn",
        for_task=task_id,
    )


def _in_need(state: ClusterState) -> list[tuple[TaskId, Line]]:
    """Online tasks that wait for GPUs, in order, up to a bound."""
    lines = [
        line
        for line in state.queue.pools[Pool.ONLINE].ready
        if tenant_limits(state, line.account, line.claim) is None
        and guarantees(state, line.account, line.claim) is None
    ]
    waiting = [
        (-line.level(task_id), line.account.share, task_id, line)
        for line in lines
        for task_id in islice(line.ready, MAX_HELPED)
    ]
    waiting.sort(key=lambda each: each[:3])
    return [(task_id, line) for _, _, task_id, line in waiting[:MAX_HELPED]]


def _victims(seeker: _Seeker, plan: _Plan, at: int) -> list[Lease] | None:
    """None: no node suits. Empty: enough GPUs come free without a stop."""
    state, demand = seeker.state, seeker.line.demand
    if demand.nodes == 1:
        for node_id in [*plan.stopped_for.get(seeker.task_id, ()), *sorted(plan.ending)]:
            choice = _choose(seeker, node_id, [], plan, at)
            if choice is not None:
                plan.promise(choice, demand, state.rooms.by_node[node_id])
                return []
    candidates = plan.candidates(state)
    rooms = candidates if demand.nodes == 1 else state.rooms.by_node
    found = [_choose(seeker, node_id, candidates.get(node_id, []), plan, at) for node_id in rooms]
    choices = sorted([choice for choice in found if choice is not None], key=lambda choice: choice[:4])
    choices = choices[: demand.nodes]
    if len(choices) < demand.nodes or sum([choice.milli for choice in choices]) > plan.left_milli:
        return None
    for choice in choices:
        plan.promise(choice, demand, state.rooms.by_node[choice.node_id])
    return [lease for choice in choices for lease in choice.leases]


def _is_stoppable(state: ClusterState, lease: Lease) -> bool:
    if lease.stopping or not lease.gpu_ids or lease.share_milli < WHOLE_MILLI:
        return False
    task = state.tasks[lease.task_id]
    if task.allocation or task.cancelling or task.id in state.gangs:
        return False
    return state.shapes[task.shape_id].pool is Pool.BATCH


def _choose(seeker: _Seeker, node_id: NodeId, leases: list[Lease], plan: _Plan, at: int) -> _Choice | None:
    """The leases to end so that the task fits on this node, with the least work lost; None if impossible."""
    demand = seeker.line.demand
    room = seeker.state.rooms.by_node[node_id]
    if not room.ready or not holds(room.labels, demand.constraints):
        return None
    shared = _beside(room, seeker, plan)
    if shared and _has_host(room, seeker, plan, []):
        return _Choice(0, 0, 0, node_id, [], shared)
    idle = _comes_free(room, seeker, plan)
    short = demand.gpus - len(idle)
    stoppable = [lease for lease in leases if seeker.may_stop(lease)]
    by_loss = sorted(stoppable, key=lambda lease: (_lost(lease, at), -lease.id))
    useful = [lease for lease in by_loss if _freed(room, lease, seeker)]
    chosen: list[Lease] = []
    while short > 0:
        # A lease that frees just enough is better than one that frees too much.
        fitting = [lease for lease in useful if len(_freed(room, lease, seeker)) <= short]
        best = fitting[0] if fitting else min(useful, key=lambda lease: len(lease.gpu_ids), default=None)
        if best is None:
            return None
        useful.remove(best)
        chosen.append(best)
        short -= len(_freed(room, best, seeker))
    for lease in by_loss:
        if _has_host(room, seeker, plan, chosen):
            break
        if lease not in chosen:
            chosen.append(lease)
    if not _has_host(room, seeker, plan, chosen):
        return None
    chosen = _needed(room, seeker, chosen, idle, plan)
    cards = idle + [gpu_id for lease in chosen for gpu_id in _freed(room, lease, seeker)]
    milli = sum([lease.gpu_milli for lease in chosen])
    age = -max([lease.id for lease in chosen], default=0)
    lost = sum([_lost(lease, at) for lease in chosen])
    return _Choice(lost, milli, age, node_id, chosen, cards[: demand.gpus])


def _beside(room: Room, seeker: _Seeker, plan: _Plan) -> list[GpuId]:
    """A GPU that was promised to another share and has room for this one, too."""
    demand = seeker.line.demand
    if demand.share_milli == WHOLE_MILLI:
        return []
    for gpu_id, left_milli in plan.parts.items():
        card = room.cards.get(gpu_id)
        if card is not None and seeker.takes(card) and milli_on(demand, card.usable_mb) <= left_milli:
            return [gpu_id]
    return []


def _comes_free(room: Room, seeker: _Seeker, plan: _Plan) -> list[GpuId]:
    """GPUs not promised to an earlier task: idle, kept by its own reservation, or of tasks that are being stopped."""
    own = [card for card in room.kept if seeker.task_id in room.keeps[card.id]]
    free = [card.id for card in room.idle + own if seeker.takes(card)]
    for lease in plan.ending.get(room.node_id, ()):
        free += _freed(room, lease, seeker)
    return [gpu_id for gpu_id in free if gpu_id not in plan.cards]


def _needed(room: Room, seeker: _Seeker, chosen: list[Lease], idle: list[GpuId], plan: _Plan) -> list[Lease]:
    """Drops leases that turn out not to be needed, the most expensive first."""
    kept = list(chosen)
    for lease in reversed(chosen):
        rest = [each for each in kept if each is not lease]
        freed = sum([len(_freed(room, each, seeker)) for each in rest])
        if len(idle) + freed >= seeker.line.demand.gpus and _has_host(room, seeker, plan, rest):
            kept = rest
    return kept


def _freed(room: Room, lease: Lease, seeker: _Seeker) -> list[GpuId]:
    """The GPUs of the lease that suit the task."""
    cards = [room.cards.get(gpu_id) for gpu_id in lease.gpu_ids]
    return [card.id for card in cards if card is not None and seeker.takes(card)]


def _has_host(room: Room, seeker: _Seeker, plan: _Plan, chosen: list[Lease]) -> bool:
    demand = seeker.line.demand
    ending = chosen + plan.ending.get(room.node_id, [])
    taken = [demand, *plan.promised.get(room.node_id, ())]
    cpus_milli = room.cpus_free_milli + sum([lease.cpus_milli for lease in ending])
    ram_mb = room.ram_free_mb + sum([lease.ram_mb for lease in ending])
    return (
        (not demand.cpus_milli or cpus_milli >= sum([each.cpus_milli for each in taken]))
        and (not demand.ram_mb or ram_mb >= sum([each.ram_mb for each in taken]))
        and len(room.leases) - len(ending) + len(taken) <= room.max_leases
    )


def _lost(lease: Lease, at: int) -> int:
    return lease.gpu_milli * max(0, at - lease.granted_at)
