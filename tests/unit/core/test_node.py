"""The life of nodes and their GPUs."""

from __future__ import annotations

from building import cluster, do, finished, gpu, gpus_of, node, run_pass, task, tried
from dgpu.core.commands import (
    ChangeInventory,
    DrainNode,
    LoseNode,
    ObserveGpu,
    ReleaseNode,
    RemoveNode,
    ReportStarted,
    ResumeNode,
)
from dgpu.core.events import NodeRegistered, TaskRequeued
from dgpu.core.model.node import GpuStatus, NodeStatus
from dgpu.core.model.task import Restart, TaskStatus
from dgpu.core.rejections import GpuClaimed, NodeBusy, NodeNotOffline, UnknownGpu, UnknownNode
from dgpu.core.state import gpu_status

LOST = LoseNode(node_id="n1", reason="no heartbeat for 15 s")
GIVEN_UP = ReleaseNode(node_id="n1", reason="lease over")


def running(*, started: bool = True, **more):
    state = cluster(node("n1", gpus=2), task(**more))
    run_pass(state)
    if started and not more.get("allocation"):
        do(state, ReportStarted(lease_id=1))
    return state


def test_a_lost_node_is_offline_and_its_tasks_keep_their_leases() -> None:
    """Nobody can tell a dead node from a cut cable: a task must not run twice."""
    state = running()
    do(state, LOST)
    assert state.nodes["n1"].status is NodeStatus.OFFLINE
    assert state.gpu_counts()[GpuStatus.OFFLINE] == 2
    assert state.tasks[1].status is TaskStatus.RUNNING
    assert do(state, LOST) == ()


def test_a_service_on_a_lost_node_is_replaced_at_once() -> None:
    state = cluster(node("n1"), node("n2"), task(restart=Restart.ALWAYS))
    run_pass(state)
    do(state, LOST)
    assert run_pass(state) == [1]
    assert (state.tasks[1].node_id, state.tasks[1].retries) == ("n2", 0)


def test_a_node_given_up_gives_its_tasks_back_uncounted() -> None:
    state = running()
    do(state, LOST)
    do(state, GIVEN_UP)
    waiting = state.tasks[1]
    assert (waiting.status, waiting.reason, waiting.retries, waiting.attempt) == (
        TaskStatus.PENDING,
        "node_lost",
        0,
        1,
    )
    assert waiting.error == "node n1 was lost: lease over"
    assert do(state, GIVEN_UP) == ()


def test_a_node_that_can_be_reached_is_not_given_up() -> None:
    state = running()
    assert tried(state, GIVEN_UP) == NodeNotOffline(node_id="n1")


def test_a_node_back_with_the_same_boot_goes_on_with_what_it_holds() -> None:
    state = running()
    do(state, LOST)
    (event,) = do(state, node("n1", gpus=2, held=(1,)))
    assert isinstance(event, NodeRegistered)
    assert state.tasks[1].status is TaskStatus.RUNNING
    assert state.gpu_counts()[GpuStatus.BUSY] == 1


def test_what_a_node_does_not_hold_any_more_waits_again() -> None:
    state = running()
    gone, _ = do(state, node("n1", gpus=2))
    assert isinstance(gone, TaskRequeued)
    assert (gone.counted, gone.reason) == (False, "node_lost")
    assert state.gpu_counts()[GpuStatus.IDLE] == 2


def test_what_never_started_keeps_its_lease_and_is_ordered_again() -> None:
    state = running(started=False)
    do(state, node("n1", gpus=2))
    assert state.tasks[1].lease_id == 1


def test_after_a_reboot_nothing_runs_any_more_whatever_it_says() -> None:
    state = running()
    do(state, node("n1", gpus=2, boot="boot-2", held=(1,)))
    assert state.tasks[1].status is TaskStatus.PENDING


def test_an_allocation_outlives_its_node_s_reboot_and_not_its_loss() -> None:
    """Nothing runs in it that could be gone; its GPUs are there again."""
    state = running(allocation=True)
    do(state, node("n1", gpus=2, boot="boot-2"))
    assert state.tasks[1].status is TaskStatus.RUNNING
    do(state, LOST)
    do(state, GIVEN_UP)
    assert state.tasks[1].status is TaskStatus.PENDING


def test_a_drain_lets_tasks_end_takes_no_new_ones_and_survives_a_reconnect() -> None:
    state = running()
    do(state, DrainNode(node_id="n1", reason="new fan"))
    do(state, task())
    assert run_pass(state) == []
    assert [gpu_status(state, card) for card in state.node_gpus("n1")] == [GpuStatus.BUSY, GpuStatus.DRAINING]
    do(state, node("n1", gpus=2, held=(1,)))
    assert (state.nodes["n1"].draining, state.nodes["n1"].drain_reason) == (True, "new fan")
    assert do(state, DrainNode(node_id="n1", reason="new fan")) == ()
    do(state, finished(1))
    assert state.gpu_counts()[GpuStatus.DRAINING] == 2
    do(state, ResumeNode(node_id="n1"))
    assert do(state, ResumeNode(node_id="n1")) == ()
    assert run_pass(state) == [2]


def test_only_a_node_that_is_off_and_empty_is_removed() -> None:
    state = running()
    assert tried(state, RemoveNode(node_id="n1")) == NodeBusy(node_id="n1", leases=1, status="ready")
    do(state, LOST)
    assert tried(state, RemoveNode(node_id="n1")) == NodeBusy(node_id="n1", leases=1, status="offline")
    do(state, GIVEN_UP)
    do(state, RemoveNode(node_id="n1"))
    assert (state.nodes, state.gpus, state.node_gpus("n1")) == ({}, {}, ())
    assert sum(state.gpu_counts().values()) == 0


def test_commands_on_an_unknown_node_or_gpu_say_so() -> None:
    state = cluster()
    for command in (
        LOST,
        GIVEN_UP,
        DrainNode(node_id="n1"),
        ResumeNode(node_id="n1"),
        RemoveNode(node_id="n1"),
        ChangeInventory(node_id="n1", gpus=()),
    ):
        assert tried(state, command) == UnknownNode(node_id="n1")
    assert tried(state, ObserveGpu(gpu_id="x", foreign_mb=0)) == UnknownGpu(gpu_id="x")


def test_two_connected_nodes_cannot_have_the_same_card() -> None:
    state = cluster(node("n1", gpus=(gpu("x"),)))
    assert tried(state, node("n2", gpus=(gpu("x"),))) == GpuClaimed(gpu_id="x", node_id="n2", holder="n1")
    twice = (gpu("y", index=0), gpu("y", index=1))
    assert tried(state, node("n2", gpus=twice)) == GpuClaimed(gpu_id="y", node_id="n2", holder="n2")


def test_a_card_moves_when_its_old_node_is_off_and_nothing_is_leased_on_it() -> None:
    state = cluster(node("n1", gpus=(gpu("x"), gpu("y", index=1))), task())
    run_pass(state)
    do(state, LOST)
    assert tried(state, node("n2", gpus=(gpu("x", on="n2"),))) == GpuClaimed(
        gpu_id="x", node_id="n2", holder="n1"
    )
    do(state, node("n2", gpus=(gpu("y", on="n2"),)))
    assert [card.id for card in state.node_gpus("n1")] == ["x"]
    assert [card.id for card in state.node_gpus("n2")] == ["y"]
    assert state.gpu_counts()[GpuStatus.IDLE] == 1


def test_a_leased_card_that_left_is_kept_as_gone_until_its_lease_ends() -> None:
    state = running()
    do(state, ChangeInventory(node_id="n1", gpus=(gpu("GPU-n1-1", index=1),)))
    assert state.gpus["GPU-n1-0"].gone
    assert gpu_status(state, state.gpus["GPU-n1-0"]) is GpuStatus.OFFLINE
    assert state.tasks[1].status is TaskStatus.RUNNING
    do(state, finished(1, exit_code=1))
    assert list(state.gpus) == ["GPU-n1-1"]


def test_a_card_that_comes_back_is_not_trusted_for_that() -> None:
    """See test_health.py for its way back."""
    state = running()
    do(state, ChangeInventory(node_id="n1", gpus=()))
    do(state, ChangeInventory(node_id="n1", gpus=gpus_of("n1", 2)))
    assert not state.gpus["GPU-n1-0"].gone
    assert gpu_status(state, state.gpus["GPU-n1-0"]) is GpuStatus.ERROR
    do(state, task())
    assert run_pass(state) == []


def test_the_same_list_again_is_no_change() -> None:
    state = cluster(node("n1", gpus=2))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=512))
    assert do(state, ChangeInventory(node_id="n1", gpus=gpus_of("n1", 2)[::-1])) == ()


def test_an_observation_counts_in_steps_and_only_when_it_changes() -> None:
    state = cluster(node("n1"))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=300))
    assert state.gpus["GPU-n1-0"].foreign_mb == 512
    assert do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=500)) == ()
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=500, fault="Xid 79"))
    assert state.gpu_counts()[GpuStatus.ERROR] == 1


def test_a_lost_gpu_leaves_its_task_to_its_agent() -> None:
    state = running()
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=0, fault="fell off the bus"))
    assert state.tasks[1].status is TaskStatus.RUNNING
    do(state, finished(1, exit_code=1))
    do(state, task(2))
    assert run_pass(state) == []


def test_what_a_node_has_and_holds_is_listed_by_index_and_by_age() -> None:
    state = cluster(node("n1", gpus=(gpu("b", index=1), gpu("a", index=0))), task(count=2))
    run_pass(state)
    assert [card.id for card in state.node_gpus("n1")] == ["a", "b"]
    assert [each.id for each in state.node_leases("n1")] == [1, 2]
    assert state.gpu_leases("a")[0].task_id == 1
    assert state.running_count == 2
