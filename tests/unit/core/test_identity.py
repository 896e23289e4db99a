"""Leases of one journal are never taken for those of another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import cluster, do, node, task
from dgpu.core.commands import BeginEpoch, HeldLease, RegisterNode, ReportStarted, RunPass
from dgpu.core.digest import digest
from dgpu.core.identity import MAX_NONCES, is_same_run
from dgpu.core.ids import MAX_EPOCH, LeaseId, NodeId, TaskId, first_lease_of
from dgpu.core.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.core.task import TaskStatus

OURS = HeldLease(
    lease_id=first_lease_of(1), task_id=TaskId(1), running=True, attempt=1, nonce="n1", cluster_id="c"
)


def begin(nonce: str = "n1", **known) -> BeginEpoch:
    return BeginEpoch(settings=Settings(memory_margin_mb=0), nonce=nonce, cluster_id="c", **known)


def running() -> ClusterState:
    """One task runs on n1 under the first lease of the first epoch."""
    state = ClusterState()
    for command in (
        begin(),
        node("n1", gpus=1),
        task(gpus=1),
        RunPass(),
        ReportStarted(lease_id=first_lease_of(1)),
    ):
        do(state, command)
    return state


def test_lease_ids_contain_the_epoch_and_fit_a_browser() -> None:
    state = running()
    assert list(state.leases) == [1 << 32 | 1]
    do(state, begin("n2"))
    do(state, node("n2", gpus=1))
    do(state, task(gpus=1))
    do(state, RunPass())
    assert list(state.leases) == [1 << 32 | 1, 2 << 32 | 1]
    assert [lease.nonce for lease in state.leases.values()] == ["n1", "n2"]
    assert first_lease_of(MAX_EPOCH) + (1 << 32) - 2 < 1 << 53


def test_the_cluster_id_is_created_once() -> None:
    state = running()
    do(state, replace(begin("n2"), cluster_id="another"))
    assert (state.cluster_id, state.nonce, state.nonces) == ("c", "n2", {1: "n1", 2: "n2"})


def test_a_new_epoch_is_above_all_that_is_known_elsewhere() -> None:
    state = running()
    do(state, begin("n9", above_epoch=8, above_task=TaskId(41), lost_tail=True))
    do(state, task(gpus=1))
    assert state.epoch == 9
    assert max(state.tasks) == 42
    assert state.next_lease_id == first_lease_of(9)
    assert state.nonces == {9: "n9"}, "earlier epochs prove nothing after a lost tail"


def test_nonces_of_the_latest_epochs_are_remembered() -> None:
    state = ClusterState()
    for number in range(MAX_NONCES + 10):
        do(state, begin(f"n{number}"))
    assert len(state.nonces) == MAX_NONCES
    assert min(state.nonces) == 11


@pytest.mark.parametrize(
    "other",
    [
        {"task_id": TaskId(999)},
        {"attempt": 2},
        {"nonce": "other"},
        {"cluster_id": "other"},
        {"lease_id": LeaseId(7)},
    ],
)
def test_a_run_of_another_journal_is_not_adopted(other) -> None:
    """Its exit code would become that of our task."""
    state = running()
    held = replace(OURS, **other)
    assert not is_same_run(state, held)
    again = replace(node("n1", gpus=1), held=(held,))
    do(state, again)
    assert state.tasks[TaskId(1)].status is TaskStatus.PENDING
    assert not state.leases


@pytest.mark.parametrize(
    "held", [OURS, replace(OURS, attempt=0, nonce="", cluster_id=""), replace(OURS, nonce="", cluster_id="")]
)
def test_our_own_run_is_kept_also_when_an_earlier_version_started_it(held) -> None:
    state = running()
    do(state, replace(node("n1", gpus=1), held=(held,)))
    assert list(state.leases) == [OURS.lease_id]


def test_an_upgrade_keeps_tasks_that_run_under_old_numbers() -> None:
    state = cluster(node("n1", gpus=1), task(gpus=1))
    do(state, RunPass())
    do(state, ReportStarted(lease_id=LeaseId(1)))
    before = digest(state)
    assert state.leases[LeaseId(1)].nonce == ""
    do(state, begin())
    assert digest(state) != before
    held = HeldLease(lease_id=LeaseId(1), task_id=TaskId(1), running=True, attempt=1)
    do(state, replace(node("n1", gpus=1), held=(held,)))
    assert list(state.leases) == [1]
    assert isinstance(node("n1"), RegisterNode)
    assert state.nodes[NodeId("n1")].boot_id
