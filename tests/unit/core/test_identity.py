"""Leases of one journal are never taken for those of another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import cluster, do, node, task
from dgpu.core.commands import BeginEpoch, HeldLease, ReadWallClock, RegisterNode, ReportStarted, RunPass
from dgpu.core.decide.time import LOSS_ACCEPTED
from dgpu.core.digest import digest
from dgpu.core.identity import MAX_NONCES, is_same_run
from dgpu.core.model.ids import MAX_EPOCH, LeaseId, NodeId, TaskId, first_lease_of
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.state import ClusterState

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


def placed(begin_command: BeginEpoch) -> ClusterState:
    """A task was given to n1 and is not known to have started; then another epoch begins."""
    state = ClusterState()
    for command in (begin(), node("n1", gpus=1), task(gpus=1), RunPass(), begin_command):
        do(state, command)
    return state


def test_an_attempt_that_never_started_keeps_its_lease_when_its_node_comes_back() -> None:
    state = placed(begin("n2"))
    do(state, node("n1", gpus=1))
    assert list(state.leases) == [first_lease_of(1)]


def test_an_attempt_whose_end_may_be_lost_is_not_ordered_again_under_the_same_lease() -> None:
    """It may have run already: its output and its work directory would be those of two runs."""
    state = placed(begin("n9", above_epoch=8, lost_tail=True))
    do(state, node("n1", gpus=1))
    assert not state.leases
    do(state, RunPass())
    assert list(state.leases) == [first_lease_of(9)]
    assert state.tasks[TaskId(1)].attempt == 2


def test_an_attempt_from_before_a_loss_that_its_node_still_runs_is_kept() -> None:
    state = placed(begin("n9", above_epoch=8, lost_tail=True))
    do(state, replace(node("n1", gpus=1), held=(OURS,)))
    assert list(state.leases) == [OURS.lease_id]


# The wait after an accepted loss

SPAN = WallSpan(boot_id="b1", boot_offset_ms=0, wall_offset_ms=0)
WAIT_MS = 65_000


def lost(at: int = 1_000) -> ClusterState:
    """An operator accepted a loss. The scheduler waits until 66,000."""
    state = running()
    do(state, replace(begin("n2", lost_tail=True, lost_wait_ms=WAIT_MS, wall=SPAN), at=at))
    do(state, ReadWallClock(at=at, span=SPAN))
    return state


def again(state: ClusterState, at: int, span: WallSpan | None = SPAN) -> int:
    do(state, replace(begin("n3", lost_wait_ms=WAIT_MS, wall=span), at=at))
    return state.no_pass_before


def test_without_a_loss_nothing_is_waited_for() -> None:
    assert again(running(), 1_000) == 0


def test_a_scheduler_that_dies_during_the_wait_leaves_it_to_the_next_one() -> None:
    state = lost()
    assert state.no_pass_before == 66_000
    assert again(state, 10_000) == 66_000
    assert again(state, 65_999) == 66_000
    assert again(state, 66_000) == 0
    assert again(state, 66_001) == 0


@pytest.mark.parametrize("span", [replace(SPAN, boot_id="b2"), replace(SPAN, boot_offset_ms=9_000_000), None])
def test_time_that_was_not_counted_does_not_end_the_wait(span: WallSpan | None) -> None:
    """After a reboot a wall clock that is hours ahead is believed, and the nodes have not frozen anything yet."""
    assert again(lost(), 9_000_000, span) == 9_000_000 + WAIT_MS


def test_a_wait_that_the_journal_proves_to_be_over_is_over_also_after_a_reboot() -> None:
    state = lost()
    do(state, replace(task(gpus=1), at=66_000))
    assert again(state, 66_500, replace(SPAN, boot_id="b2")) == 0


def test_a_loss_that_was_accepted_by_a_start_that_died_is_a_loss_for_the_next_one() -> None:
    state = running()
    state.no_pass_before = LOSS_ACCEPTED
    assert again(state, 5_000) == 5_000 + WAIT_MS
    assert state.nonces == {2: "n3"}


def test_the_wait_is_part_of_the_state() -> None:
    state = lost()
    before = digest(state)
    state.no_pass_before += 1
    assert digest(state) != before
    assert ClusterState.from_parts(state.parts()).no_pass_before == state.no_pass_before
    assert state.fork().no_pass_before == state.no_pass_before
