"""The cluster and the epoch of a lease, so that runs of another journal are never mistaken for runs of this one."""

from __future__ import annotations

from typing import Final

from dgpu.core.commands import HeldLease
from dgpu.core.events import EpochBegan
from dgpu.core.model.ids import epoch_of, first_lease_of
from dgpu.core.model.lease import Lease
from dgpu.core.state import ClusterState

MAX_NONCES: Final = 256  # epochs whose nonce is stored; agents are rarely disconnected for longer


def identify(state: ClusterState, event: EpochBegan) -> None:
    """The new epoch has its own lease numbers. Task ids continue above all ids ever used."""
    state.cluster_id, state.nonce = event.cluster_id, event.nonce
    state.next_lease_id = max(state.next_lease_id, first_lease_of(event.epoch))
    state.next_task_id = max(state.next_task_id, event.next_task_id)
    if event.lost_tail:
        state.nonces.clear()
    state.nonces[event.epoch] = event.nonce
    while len(state.nonces) > MAX_NONCES:
        del state.nonces[min(state.nonces)]


def is_before_loss(state: ClusterState, lease: Lease) -> bool:
    """Whether the lease was granted before groups were lost. If so, the journal does not know its fate."""
    return bool(lease.nonce) and state.nonces.get(epoch_of(lease.id)) != lease.nonce


def is_same_run(state: ClusterState, held: HeldLease) -> bool:
    """Whether this is the run that the scheduler ordered, not a run of another journal with the same number.

    Agents and keepers of an earlier version report no attempt, nonce or cluster. Their tasks must survive an upgrade,
    so a missing value is not compared.
    """
    lease = state.leases.get(held.lease_id)
    return (
        lease is not None
        and lease.task_id == held.task_id
        and held.attempt in {0, state.tasks[lease.task_id].attempt}
        and held.nonce in {"", lease.nonce}
        and held.cluster_id in {"", state.cluster_id}
        and held.worker_lease_id == lease.worker
    )
