"""Several tasks on one GPU, within its memory and its share."""

from __future__ import annotations

from building import cluster, do, finished, gpu, node, run_pass, task
from dgpu.core.commands import ObserveCondition, ObserveGpu
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState

SHARED = 0.001  # what `shared: true` alone means: its memory decides


def codes(state: ClusterState, task_id: int) -> set[str]:
    return {blocker.code for blocker in explain(state, task_id, state.last_at).blockers}


def test_tasks_share_a_gpu_until_its_memory_is_promised() -> None:
    state = cluster(node("n1", memory_mb=16_384), task(count=5, memory_mb=4_096, share=SHARED))
    assert run_pass(state) == [1, 2, 3, 4]
    assert {state.tasks[number].gpu_ids for number in (1, 2, 3, 4)} == {("GPU-n1-0",)}
    assert [lease.gpu_milli for lease in state.leases.values()] == [250] * 4
    assert "gpu_share" in codes(state, 5)
    do(state, finished(2))
    assert run_pass(state) == [5]
    check_invariants(state)


def test_the_margin_holds_for_shares_too() -> None:
    state = cluster(
        node("n1", memory_mb=16_384), task(count=4, memory_mb=4_096, share=SHARED), settings=Settings()
    )
    assert run_pass(state) == [1, 2, 3]


def test_a_share_counts_beside_memory_whichever_is_more() -> None:
    state = cluster(
        node("n1", memory_mb=10_000), task(memory_mb=2_560, share=0.6), task(memory_mb=5_120, share=0.1)
    )
    assert run_pass(state) == [1]  # 0.6 and 0.512 do not fit, though their memory would
    lease = state.leases[1]
    assert (lease.gpu_milli, lease.gpu_memory_mb) == (600, 6_144)  # of 10,240: cards count in steps, too


def test_an_exclusive_task_never_shares() -> None:
    state = cluster(node("n1"), task(memory_mb=1_024, share=SHARED))
    run_pass(state)
    do(state, task())
    assert run_pass(state) == []
    assert "gpus_busy" in codes(state, 2)
    do(state, finished(1))
    assert run_pass(state) == [2]
    do(state, task(memory_mb=1_024, share=SHARED))
    assert run_pass(state) == []


def test_shares_go_where_shares_are_so_that_whole_cards_stay_whole() -> None:
    state = cluster(node("n1", gpus=2), task(count=2, memory_mb=2_048, share=SHARED), task())
    assert run_pass(state) == [1, 2, 3]
    assert state.tasks[1].gpu_ids == state.tasks[2].gpu_ids != state.tasks[3].gpu_ids


def test_memory_of_others_counts_against_the_next_share() -> None:
    state = cluster(node("n1", memory_mb=16_384), task(count=2, memory_mb=6_144, share=SHARED))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=6_144))
    assert run_pass(state) == [1]


def test_what_a_share_outgrows_is_not_promised_again() -> None:
    state = cluster(node("n1", memory_mb=16_384), task(memory_mb=4_096, share=SHARED))
    run_pass(state)
    do(state, ObserveCondition(gpu_id="GPU-n1-0", over_mb=8_192))
    do(state, task(memory_mb=8_192, share=SHARED))
    assert run_pass(state) == []
    do(state, ObserveCondition(gpu_id="GPU-n1-0"))
    assert run_pass(state) == [2]


def test_a_node_that_drains_takes_no_more_shares() -> None:
    from dgpu.core.commands import DrainNode, ResumeNode

    state = cluster(node("n1"), task(memory_mb=1_024, share=SHARED))
    run_pass(state)
    do(state, DrainNode(node_id="n1"))
    do(state, task(memory_mb=1_024, share=SHARED))
    assert run_pass(state) == []
    do(state, ResumeNode(node_id="n1"))
    assert run_pass(state) == [2]


def test_on_a_node_of_several_models_a_share_goes_to_the_gpu_of_its_model() -> None:
    """The other model is listed first there, and does not end the search."""
    cards = (gpu("first", model="V100"), gpu("second", index=1, model="T4"))
    state = cluster(node("n1", gpus=cards), task(share=0.5, models=("T4",)))
    assert run_pass(state) == [1]
    assert state.tasks[1].gpu_ids == ("second",)


def test_on_a_node_of_several_models_a_share_joins_the_share_on_the_gpu_of_its_model() -> None:
    """Each GPU is asked for itself, although both are partly used."""
    cards = (gpu("first", model="V100"), gpu("second", index=1, model="T4"))
    state = cluster(
        node("n1", gpus=cards), task(share=0.5, models=("V100",)), task(share=0.5, models=("T4",))
    )
    assert run_pass(state) == [1, 2]
    do(state, task(share=0.5, models=("T4",)))
    assert run_pass(state) == [3]
    assert state.tasks[3].gpu_ids == ("second",)


def test_of_gpus_that_are_equally_used_the_one_with_the_lower_index_is_taken() -> None:
    cards = (gpu("z", index=0), gpu("a", index=1))
    state = cluster(node("n1", gpus=cards), task(share=0.7, count=2), task(share=0.2))
    run_pass(state)
    assert [state.tasks[number].gpu_ids for number in (1, 2, 3)] == [("z",), ("a",), ("z",)]
