"""Which cluster and which epoch a lease comes from, so that runs of another journal are never taken for ours."""

from __future__ import annotations

from typing import Final

from dgpu.core.commands import HeldLease
from dgpu.core.events import EpochBegan
from dgpu.core.model.ids import epoch_of, first_lease_of
from dgpu.core.model.lease import Lease
from dgpu.core.state import ClusterState

MAX_NONCES: Final = 256  # epochs whose nonce is remembered: an agent was rarely away for longer


def identify(state: ClusterState, event: EpochBegan) -> None:
    """The new epoch numbers its leases on its own. Task ids go on, above all that were ever given out."""
    state.cluster_id, state.nonce = event.cluster_id, event.nonce
    state.next_lease_id = max(state.next_lease_id, first_lease_of(event.epoch))
    state.next_task_id = max(state.next_task_id, event.next_task_id)
    if event.lost_tail:
        state.nonces.clear()
    state.nonces[event.epoch] = event.nonce
    while len(state.nonces) > MAX_NONCES:
        del state.nonces[min(state.nonces)]


def is_before_loss(state: ClusterState, lease: Lease) -> bool:
    """Was it granted before groups were lost? Then the journal does not know what became of it."""
    return bool(lease.nonce) and state.nonces.get(epoch_of(lease.id)) != lease.nonce


def is_same_run(state: ClusterState, held: HeldLease) -> bool:
    """Is this what we ordered, and not a run of another journal under the same number?

    Agents and keepers of an earlier version name no attempt, nonce or cluster. Their tasks must survive an upgrade, so
    a value that is not named is not compared.
    """
    lease = state.leases.get(held.lease_id)
    return (
        lease is not None
        and lease.task_id == held.task_id
        and held.attempt in {0, state.tasks[lease.task_id].attempt}
        and held.nonce in {"", lease.nonce}
        and held.cluster_id in {"", state.cluster_id}
    )
