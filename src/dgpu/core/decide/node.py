"""The life of nodes and their GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from dgpu.core.commands import (
    ChangeInventory,
    DrainNode,
    LoseNode,
    ObserveGpu,
    RegisterNode,
    ReleaseNode,
    RemoveNode,
    ResumeNode,
)
from dgpu.core.decide.endings import lose_attempt
from dgpu.core.decide.health import fall_ill, fault_news, of_gpu, once_per_lease
from dgpu.core.decision import Decision
from dgpu.core.events import (
    Event,
    InventoryChanged,
    NodeDraining,
    NodeLost,
    NodeRegistered,
    NodeRemoved,
    NodeResumed,
    ObservationChanged,
)
from dgpu.core.identity import is_before_loss, is_same_run
from dgpu.core.model.health import Cause, Health, cause_of
from dgpu.core.model.ids import NodeId
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import Restart, in_steps
from dgpu.core.rejections import GpuClaimed, NodeBusy, NodeNotOffline, UnknownNode
from dgpu.core.state import ClusterState

_OfNode = TypeVar("_OfNode", ChangeInventory, LoseNode, ReleaseNode, DrainNode, ResumeNode, RemoveNode)


def _of_node(
    decide: Callable[[ClusterState, _OfNode, Node], Decision],
) -> Callable[[ClusterState, _OfNode], Decision]:
    """Refuses a command about an unknown node."""

    def decide_known(state: ClusterState, command: _OfNode) -> Decision:
        node = state.nodes.get(command.node_id)
        return UnknownNode(node_id=command.node_id) if node is None else decide(state, command, node)

    return decide_known


def decide_register(state: ClusterState, command: RegisterNode) -> Decision:
    claimed = _claimed(state, command.node_id, command.gpus)
    if claimed is not None:
        return claimed
    known = state.nodes.get(command.node_id)
    node = Node(
        id=command.node_id,
        boot_id=command.boot_id,
        address=command.address,
        agent_version=command.agent_version,
        cpus_milli=command.cpus_milli,
        ram_mb=command.ram_mb,
        labels=command.labels,
        registered_at=command.at,
        # An operator requested the drain: it outlives the node's connection.
        draining=known is not None and known.draining,
        drain_reason=known.drain_reason if known is not None else "",
        work_dir=command.work_dir,
        enforced=command.enforced,
        not_isolated=command.not_isolated,
    )
    gpus = _listed(state, command.node_id, command.gpus)
    registered = NodeRegistered(at=command.at, node=node, gpus=gpus)
    ill = _fallen_ill(state, command.at, gpus)
    return tuple(once_per_lease((*_gone_attempts(state, command, known), registered, *ill)))


@_of_node
def decide_inventory(state: ClusterState, command: ChangeInventory, node: Node) -> Decision:
    claimed = _claimed(state, node.id, command.gpus)
    if claimed is not None:
        return claimed
    gpus = _listed(state, node.id, command.gpus)
    if _by_index(gpus) == _by_index(gpu for gpu in state.node_gpus(node.id) if not gpu.gone):
        return ()
    changed = InventoryChanged(at=command.at, node_id=node.id, gpus=gpus)
    ill = (*_fallen_ill(state, command.at, gpus), *_vanished(state, command.at, node.id, gpus))
    return tuple(once_per_lease((changed, *ill)))


@of_gpu
def decide_observe(state: ClusterState, command: ObserveGpu, gpu: Gpu) -> Decision:
    # Rounded up: memory promised to a task must be available.
    foreign_mb = in_steps(max(0, command.foreign_mb))
    if gpu.gone or (gpu.foreign_mb == foreign_mb and gpu.fault == command.fault):
        return ()
    observed = ObservationChanged(
        at=command.at,
        gpu_id=gpu.id,
        foreign_mb=foreign_mb,
        fault=command.fault,
        fault_cause=command.fault_cause if command.fault else "",
    )
    if not command.fault or command.fault == gpu.fault:
        return (observed,)
    cause = cause_of(command.fault_cause)
    return (observed, *fall_ill(state, command.at, gpu.id, gpu.node_id, cause, command.fault))


@_of_node
def decide_lose(state: ClusterState, command: LoseNode, node: Node) -> Decision:
    if node.offline_since:
        return ()
    # Services are replaced at once: two replicas do no harm. Other tasks keep their leases until their end is certain.
    services = (
        lease
        for lease in state.node_leases(node.id)
        if (task := state.tasks[lease.task_id]).restart is Restart.ALWAYS and not task.allocation
    )
    return (
        NodeLost(at=command.at, node_id=node.id, reason=command.reason),
        *_lose_all(state, services, command),
    )


@_of_node
def decide_release(state: ClusterState, command: ReleaseNode, node: Node) -> Decision:
    if not node.offline_since:
        return NodeNotOffline(node_id=node.id)
    return tuple(_lose_all(state, state.node_leases(node.id), command))


@_of_node
def decide_drain(_: ClusterState, command: DrainNode, node: Node) -> Decision:
    if node.draining and (command.keeps_reason or node.drain_reason == command.reason):
        return ()
    return (NodeDraining(at=command.at, node_id=node.id, reason=command.reason),)


@_of_node
def decide_resume(_: ClusterState, command: ResumeNode, node: Node) -> Decision:
    if not node.draining or command.drained_for not in {None, node.drain_reason}:
        return ()
    return (NodeResumed(at=command.at, node_id=node.id),)


@_of_node
def decide_remove(state: ClusterState, command: RemoveNode, node: Node) -> Decision:
    leases = len(state.node_leases(node.id))
    if leases or not node.offline_since:
        return NodeBusy(node_id=node.id, leases=leases, status=node.status.value)
    return (NodeRemoved(at=command.at, node_id=node.id),)


def _gone_attempts(state: ClusterState, command: RegisterNode, known: Node | None) -> list[Event]:
    """Ends attempts on this node that can no longer be running."""
    if known is None:
        return []
    rebooted = known.boot_id != command.boot_id
    held = {each.lease_id for each in command.held if is_same_run(state, each)}
    events: list[Event] = []
    # Calls come first: they end before the worker that has their slots.
    for lease in (*state.node_calls(command.node_id), *state.node_leases(command.node_id)):
        task = state.tasks[lease.task_id]
        # An allocation exists only in the state. A lease that never started is not lost: the order to start is sent
        # again. But an attempt from before an accepted loss may have started, and ended, in groups that are lost.
        is_waiting = not lease.started and not is_before_loss(state, lease)
        if task.allocation or (not rebooted and (lease.id in held or is_waiting)):
            continue
        why = "was restarted" if rebooted else "does not know it any more"
        error = f"node {command.node_id} {why}"
        events += lose_attempt(state, lease, command.at, reason="node_lost", error=error)
    return events


def _claimed(state: ClusterState, node_id: NodeId, gpus: tuple[Gpu, ...]) -> GpuClaimed | None:
    """A GPU is in one node at a time. It may have moved if its old node is offline and no lease holds it."""
    seen = set()
    for gpu in gpus:
        if gpu.id in seen:
            return GpuClaimed(gpu_id=gpu.id, node_id=node_id, holder=node_id)
        seen.add(gpu.id)
        known = state.gpus.get(gpu.id)
        if known is None or known.node_id == node_id:
            continue
        if not state.nodes[known.node_id].offline_since or gpu.id in state.rooms.holders:
            return GpuClaimed(gpu_id=gpu.id, node_id=node_id, holder=known.node_id)
    return None


def _listed(state: ClusterState, node_id: NodeId, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs as the node lists them. Foreign memory stays as last observed if the list reports none."""
    listed = []
    for gpu in gpus:
        known = state.gpus.get(gpu.id)
        foreign_mb = gpu.foreign_mb
        if known is not None and known.node_id == node_id and not foreign_mb:
            foreign_mb = known.foreign_mb
        past = state.health.get(gpu.id)
        health = Health.TRUSTED if past is None else past.state
        listed.append(replace(gpu, node_id=node_id, foreign_mb=foreign_mb, gone=False, health=health))
    return tuple(listed)


def _fallen_ill(state: ClusterState, at: int, listed: tuple[Gpu, ...]) -> list[Event]:
    """Quarantines listed GPUs that have a new fault."""
    events: list[Event] = []
    for gpu in listed:
        if fault_news(state, gpu):
            events += fall_ill(state, at, gpu.id, gpu.node_id, cause_of(gpu.fault_cause), gpu.fault)
    return events


def _vanished(state: ClusterState, at: int, node_id: NodeId, listed: tuple[Gpu, ...]) -> list[Event]:
    """Quarantines GPUs that a connected node no longer lists. (After a restart of the agent this may be intended:
    `gpu_ids`.)
    """
    still = {gpu.id for gpu in listed}
    events: list[Event] = []
    for gpu in state.node_gpus(node_id):
        if gpu.id not in still and not gpu.gone:
            events += fall_ill(state, at, gpu.id, node_id, Cause.LOST, "its node no longer lists it")
    return events


def _by_index(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: (gpu.index, gpu.id))


def _lose_all(
    state: ClusterState, leases: Iterable[Lease], command: LoseNode | ReleaseNode
) -> Iterator[Event]:
    error = f"node {command.node_id} was lost" + (f": {command.reason}" if command.reason else "")
    for lease in leases:
        yield from lose_attempt(state, lease, command.at, reason="node_lost", error=error)
