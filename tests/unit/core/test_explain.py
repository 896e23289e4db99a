"""Why a task waits."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, gpu, lease, node, run_pass, task
from dgpu.core.commands import CancelTasks, DrainNode, LoseNode, ObserveGpu
from dgpu.core.foresight.barriers import blocker_of
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool
from dgpu.core.refusals import TenantGpus
from dgpu.core.rejections import UnknownTask


def why(state, task_id: int) -> Explanation:
    told = explain(state, task_id, state.last_at)
    assert isinstance(told, Explanation)
    return told


def blockers(state, task_id: int) -> dict[str, dict]:
    return {blocker.code: blocker.numbers for blocker in why(state, task_id).blockers}


def test_without_nodes_it_says_so() -> None:
    assert blockers(cluster(task()), 1) == {"no_nodes": {}}


def test_what_could_start_now_has_no_blocker() -> None:
    told = why(cluster(node("n1"), task()), 1)
    assert (told.blockers, told.position, told.nearest) == ((), 1, None)
    assert told.summary == "task-1 is placed in the next pass"


def test_busy_gpus_come_with_numbers_and_the_nearest_node() -> None:
    state = cluster(
        node("n1", gpus=2), node("n2", gpus=2), task(count=2), lease(1, on="n1"), lease(2, on="n2")
    )
    do(state, task(2))
    told = why(state, 3)
    assert blockers(state, 3) == {
        "gpus_busy": {"needed": 2, "most_free_on_one_node": 1, "free": 2, "busy": 2}
    }
    assert (told.nearest.node_id, told.nearest.lacks) == ("n1", {"gpus": 1})
    assert told.blockers[0].detail == "needs 2 GPUs on one node; at most 1 free on one, 2 in all, 2 busy"


def test_the_nearest_node_is_one_whose_cards_could_ever_serve_it() -> None:
    """One of another model lacks as many GPUs on paper, and would lack them for ever."""
    state = cluster(
        node("a-t4", gpus=4, model="T4"),
        node("b-small", gpus=4, model="V100", memory_mb=4_096),
        node("c-busy", gpus=2, model="V100"),
        node("d-one", gpus=1, model="V100"),
        task(2),
        lease(1, on="c-busy"),
    )
    do(state, task(2, models=("V100",), memory_mb=8_192))
    told = why(state, 2).nearest
    assert (told.node_id, told.lacks) == ("c-busy", {"gpus": 2})


def test_a_faulty_card_of_its_model_is_nearer_than_a_good_one_of_another() -> None:
    state = cluster(
        node("a-t4", gpus=2, model="T4"),
        node("b", gpus=(gpu("x", index=0, fault="ecc"),)),
        task(models=("V100",)),
    )
    assert why(state, 1).nearest.node_id == "b"


def test_every_blocker_that_holds_is_named_at_once() -> None:
    cards = (
        gpu("a", index=0, reserved=True),
        gpu("b", index=1, fault="ecc"),
        gpu("c", index=2),
        gpu("d", index=3, foreign_mb=12_288),
    )
    state = cluster(
        node("n1", gpus=cards, cpus=4), node("n2"), node("n3"), node("n4", model="T4"), task(0, cpus=4)
    )
    do(state, task(memory_mb=8_192))
    for number, on in ((1, "n1"), (2, "n1")):
        lease(number, on=on)(state)
    do(state, DrainNode(node_id="n2"))
    do(state, LoseNode(node_id="n3", reason="silent"))
    do(state, task(priority=90, models=("V100",), memory_mb=8_192, cpus=2))
    do(state, task(models=("V100",), memory_mb=8_192, cpus=2))
    found = blockers(state, 4)
    assert found == {
        "offline": {"nodes": 1, "gpus": 1},
        "draining": {"nodes": 1, "gpus": 1},
        "gpus_busy": {"needed": 1, "most_free_on_one_node": 0, "free": 0, "busy": 1},
        "gpu_model": {"asked": "V100", "other": "T4", "idle": 1},
        "gpu_memory": {"asked_mb": 8_192, "most_free_mb": 4_096, "idle": 1},
        "reserved": {"gpus": 1},
        "gpu_health": {"quarantined": 1},
        "cpus": {"needed_milli": 2_000, "most_free_milli": 0},
        "tasks_ahead": {"ahead": 1},
    }
    assert why(state, 4).ahead == (3,)


def test_a_card_whose_memory_is_not_released_has_a_fault_although_it_is_trusted() -> None:
    state = cluster(node("n1"), task(count=2))
    run_pass(state)
    do(state, finished(1, stuck_gpus=("GPU-n1-0",)))
    assert blockers(state, 2) == {"gpu_health": {"fault": 1}}


def test_ram_and_the_limit_of_tasks_on_a_node_are_named() -> None:
    state = cluster(node("n1", ram_mb=1_024), task(0, ram_mb=600), settings=Settings(max_leases=1))
    run_pass(state)
    do(state, task(0, ram_mb=600))
    assert blockers(state, 2) == {
        "ram": {"needed_mb": 600, "most_free_mb": 424},
        "node_full": {"nodes": 1, "limit": 1},
    }


def test_a_back_off_says_how_long_and_why() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT, error="disk full"))
    (blocker,) = why(state, 1).blockers
    assert blocker.detail == "it is tried again in 1 s after: the node failed: disk full"
    assert blocker.numbers["eligible_at"] == state.last_at + 1_000
    assert explain(state, 1, state.last_at + 1_000).blockers == ()


def test_what_no_node_can_hold_any_more_says_what_is_lacking() -> None:
    state = cluster(
        task(8),
        task(models=("H100",)),
        task(2),
        node("n1", gpus=(gpu("a"), gpu("b", index=1, reserved=True))),
    )
    assert blockers(state, 1)["gpus_per_node"] == {"requested": 8, "largest": 1}
    assert blockers(state, 2)["gpu_model"] == {"requested": "H100", "largest": "V100"}
    assert blockers(state, 3) == {
        "gpus_per_node": {"requested": 2, "largest": 1},
        "reserved": {"gpus": 1},
        "tasks_ahead": {"ahead": 2},
    }


def test_who_is_ahead_is_listed_up_to_a_hundred_and_counted_in_full() -> None:
    state = cluster(task(count=300), task(priority=90, count=5))
    told = why(state, 300)
    assert told.position == 305
    assert told.ahead_total == 304
    assert told.ahead == (301, 302, 303, 304, 305, *range(1, 96))


def test_a_running_task_on_a_lost_node_says_that_it_cannot_be_reached() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    assert why(state, 1).summary == "task-1 is starting on node n1"
    do(state, LoseNode(node_id="n1", reason="silent"))
    assert blockers(state, 1) == {"node_unreachable": {"node": "n1", "since": state.last_at}}


def test_a_running_and_a_finished_task_get_a_clear_answer() -> None:
    state = cluster(node("n1"), task(count=2))
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    assert why(state, 1).summary == "task-1 is being stopped on node n1"
    do(state, finished(1, exit_code=3))
    run_pass(state)
    do(state, finished(2, exit_code=3))
    assert why(state, 2).summary == "task-2 is over (failed): exited with code 3"
    assert why(state, 2).position is None


def test_an_unknown_task_is_refused() -> None:
    assert explain(cluster(), 7, 0) == UnknownTask(task_id=7)


def test_memory_used_by_others_is_a_blocker_with_the_most_that_is_free() -> None:
    state = cluster(node("n1"), task(memory_mb=16_384))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=256))
    assert blockers(state, 1) == {"gpu_memory": {"asked_mb": 16_384, "most_free_mb": 16_128, "idle": 1}}


def test_memory_used_by_others_is_named_beside_busy_gpus() -> None:
    state = cluster(node("n1", gpus=3), task(), lease(1, on="n1"), task(2, memory_mb=16_384))
    do(state, ObserveGpu(gpu_id="GPU-n1-1", foreign_mb=256))
    assert set(blockers(state, 2)) == {"gpus_busy", "gpu_memory"}


@pytest.mark.parametrize(("left_ms", "shown_s"), [(1_000, 1), (1_001, 2), (1_500, 2), (60_000, 60)])
def test_the_wait_after_an_accepted_loss_is_told_in_whole_seconds(left_ms, shown_s) -> None:
    state = cluster(node("n1"), task())
    state.no_pass_before = state.last_at + left_ms
    told = explain(state, 1, state.last_at)
    assert [(each.code, each.numbers) for each in told.blockers] == [("journal_loss", {"left_ms": left_ms})]
    assert told.summary.endswith(f"no task starts for {shown_s} s")


@pytest.mark.parametrize(
    ("milli", "told"), [(500, "0.5 are reserved"), (1_000, "1 is reserved"), (2_000, "2 are reserved")]
)
def test_reserved_gpus_are_told_as_one_or_several(milli: int, told: str) -> None:
    refusal = TenantGpus(
        tenant_id="a", held_milli=1_000, limit_gpus=4, asked_milli=3_000, reserved_milli=milli
    )
    found = blocker_of(cluster(), refusal)
    assert found.detail == (
        f"tenant a holds 1 of at most 4 GPUs, it asks for 3, and {told} for tasks that it would delay"
    )


@pytest.mark.parametrize(("nodes", "told"), [(1, "1 node already runs"), (2, "2 nodes already run")])
def test_full_nodes_are_told_as_one_or_several(nodes: int, told: str) -> None:
    state = cluster(
        *(node(f"n{number}") for number in range(nodes)),
        task(0, count=nodes + 1),
        settings=Settings(max_leases=1),
    )
    run_pass(state)
    (full,) = (each for each in why(state, nodes + 1).blockers if each.code == "node_full")
    assert full.detail == f"{told} the most tasks allowed on one (1)"


@pytest.mark.parametrize(("cpus", "told"), [(1, "needs 1 cpu on"), (2, "needs 2 cpus on")])
def test_missing_cpus_are_told_as_one_or_several(cpus: int, told: str) -> None:
    state = cluster(node("n1", cpus=cpus), task(0, cpus=cpus, count=2))
    run_pass(state)
    (blocker,) = why(state, 2).blockers
    assert blocker.detail.startswith(told)


def test_a_task_whose_back_off_has_just_ended_needs_its_quota_again() -> None:
    """No pass ran since. `why` must not promise the GPU to a borrower that the next pass refuses."""
    halves = Settings(quota=Quota(online_ppm=500_000, mode=QuotaMode.BORROW))
    state = cluster(node("n1", gpus=2), task(pool=Pool.BATCH), task(pool=Pool.ONLINE), settings=halves)
    run_pass(state)
    do(state, finished(state.tasks[2].lease_id, outcome=Outcome.NODE_FAULT, error="disk full"))
    do(state, task(pool=Pool.BATCH))
    again_at = state.tasks[2].eligible_at
    assert "pool_quota" not in {each.code for each in explain(state.fork(), 3, again_at - 1).blockers}
    assert "pool_quota" in {each.code for each in explain(state.fork(), 3, again_at).blockers}
    assert run_pass(state, again_at) == [2]
