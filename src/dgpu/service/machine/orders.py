"""Orders to nodes: those that follow from committed events, and those that a node gets when it registers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from dgpu.core.events import (
    Event,
    GangPlaced,
    GpuHealthChanged,
    RankEnded,
    TaskCancelRequested,
    TaskPlaced,
    TaskStopRequested,
)
from dgpu.core.model.health import Health
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.core.model.lease import Lease
from dgpu.core.state import ClusterState
from dgpu.service.machine import agent_words as words
from dgpu.service.machine.start_orders import StartOrders
from dgpu.wire.proto import agent_pb2 as pb


def orders_after(
    state: ClusterState, events: Sequence[Event], listens: Callable[[NodeId], bool], orders: StartOrders
) -> Iterator[tuple[NodeId, pb.FromScheduler]]:
    """Orders for connected nodes; other nodes get theirs with Welcome."""
    starts: dict[NodeId, list[pb.Start | pb.Call]] = {}
    stops: dict[NodeId, list[pb.Stop]] = {}
    checks = _checks(state, events, listens)
    for event in events:
        for lease_id, stop in _leases_of(state, event):
            lease = state.leases.get(lease_id)
            if lease is None or lease.ended or not listens(lease.node_id):
                continue
            task = state.tasks[lease.task_id]
            if task.allocation:
                continue
            if stop:
                stops.setdefault(lease.node_id, []).append(pb.Stop(lease_id=lease.id, reason=stop))
            elif (start := orders.start(task, lease)) is not None:
                starts.setdefault(lease.node_id, []).append(start)
    for node_id in dict.fromkeys((*starts, *stops, *checks)):
        for message in words.orders(starts.get(node_id, ()), stops.get(node_id, ()), checks.get(node_id, ())):
            yield node_id, message


def orders_at_welcome(
    state: ClusterState, node_id: NodeId, held: Collection[LeaseId], orders: StartOrders
) -> Iterable[pb.FromScheduler]:
    """Starts of leases that the node does not hold, and all pending stops and checks."""
    starts: list[pb.Start | pb.Call] = []
    stops: list[pb.Stop] = []
    for lease in sorted(standing_leases(state, node_id), key=lambda lease: lease.id):
        task = state.tasks[lease.task_id]
        if task.allocation:
            continue
        if lease.id not in held and (start := orders.start(task, lease)) is not None:
            starts.append(start)
        if task.cancelling:
            stops.append(pb.Stop(lease_id=lease.id, reason="cancelled"))
        elif lease.stopping:
            stops.append(pb.Stop(lease_id=lease.id, reason=lease.stopping))
    checks = [
        words.check(health)
        for gpu in state.node_gpus(node_id)
        if (health := state.health.get(gpu.id)) is not None and health.state is Health.PROBING
    ]
    return words.orders(starts, stops, checks)


def standing_leases(state: ClusterState, node_id: NodeId) -> list[Lease]:
    """Without ended ranks: if the node still holds one, it must kill it."""
    leases = (*state.node_leases(node_id), *state.node_calls(node_id))
    return [lease for lease in leases if not lease.ended]


def _leases_of(state: ClusterState, event: Event) -> Iterable[tuple[LeaseId, str]]:
    """Leases that an event orders to start, or to stop with a reason."""
    if isinstance(event, TaskPlaced):
        return ((event.lease_id, ""),)
    if isinstance(event, GangPlaced):
        return ((rank.lease_id, "") for rank in event.ranks)
    if isinstance(event, TaskStopRequested):
        return ((event.lease_id, event.reason),)
    if isinstance(event, TaskCancelRequested):
        gang = state.gangs.get(event.task_id)
        leases = (event.lease_id,) if gang is None else gang.leases
        return ((lease_id, "cancelled") for lease_id in leases)
    if isinstance(event, RankEnded):
        gang = state.gangs.get(event.task_id)
        if gang is not None and gang.failed is not None:
            return ((lease_id, "rank_ended") for lease_id in gang.leases)
    return ()


def _checks(
    state: ClusterState, events: Sequence[Event], listens: Callable[[NodeId], bool]
) -> dict[NodeId, list[pb.Check]]:
    checks: dict[NodeId, list[pb.Check]] = {}
    for event in events:
        if not isinstance(event, GpuHealthChanged) or event.after is not Health.PROBING:
            continue
        if not listens(event.node_id):
            continue
        health = state.health.get(event.gpu_id)
        if health is not None and health.checks == event.checks:
            checks.setdefault(event.node_id, []).append(words.check(health))
    return checks
