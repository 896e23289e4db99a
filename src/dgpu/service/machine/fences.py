"""Nodes that may register: nodes of this cluster that obeyed no epoch outside this journal."""

from __future__ import annotations

from dgpu.core.commands import RegisterNode
from dgpu.core.model.ids import NO_TASK
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import Contradicted
from dgpu.wire.proto import agent_pb2 as pb

JOINED_NAME = "cluster.json"  # the file in which an agent stores its cluster


def is_current(session_id: str, registered: str) -> bool:
    """Whether a stream belongs to the current session of its node; `registered` empty: no session."""
    return bool(session_id) and session_id == registered


def foreign_cluster(state: ClusterState, register: pb.Register) -> str:
    """Why this node belongs to another cluster; empty: it may register."""
    if not register.cluster_id or not state.cluster_id or register.cluster_id == state.cluster_id:
        return ""
    return (
        f"node {register.node_id} belongs to cluster {register.cluster_id}, this scheduler to {state.cluster_id}. "
        f"To move the node: stop its agent, remove {JOINED_NAME} from the agent's state directory, start the agent; "
        f"tasks of the old cluster that still run there are then stopped"
    )


def contradiction(state: ClusterState, register: pb.Register, command: RegisterNode) -> Contradicted | None:
    """An epoch that the node obeyed and this journal does not have. Epochs from before nonces are not compared."""
    epoch = register.highest_epoch
    ours = state.nonces.get(epoch, "")
    if epoch <= state.epoch and not (ours and register.nonce and ours != register.nonce):
        return None
    seen = f"epoch {epoch}" if epoch > state.epoch else f"another epoch {epoch}"
    reason = (
        f"this scheduler is at epoch {state.epoch}, node {register.node_id} has obeyed {seen}: the scheduler's state "
        f"was restored from a backup or lost its latest part. If another scheduler runs on the newer state, stop this "
        f"one. To continue with this state, restart the scheduler with --accept-lost-tail"
    )
    held = max((each.task_id for each in command.held), default=NO_TASK)
    return Contradicted(node_id=command.node_id, epoch=epoch, task_id=held, reason=reason)
