"""Where a task goes: warm cards, well connected cards, whole nodes, labelled nodes."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, gpu, node, run_pass, task, tried
from dgpu.core.commands import DrainNode, ObserveCondition
from dgpu.core.foresight.explain import explain
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.rejections import NeverFits

PACK = Settings(placement=Placement.PACK, memory_margin_mb=0)
BALANCED = Settings(memory_margin_mb=0)


def test_a_warm_gpu_is_preferred() -> None:
    """Loading a model takes longer than anything that a cooler or emptier card could win."""
    state = cluster(node("n1", gpus=2), node("n2", gpus=2))
    do(state, ObserveCondition(gpu_id="GPU-n2-1", warm=("llama",), load_band=2, heat_band=2))
    do(state, task(model="llama"))
    run_pass(state)
    assert state.tasks[1].gpu_ids == ("GPU-n2-1",)
    do(state, task(model="other"))
    run_pass(state)
    assert state.tasks[2].gpu_ids == ("GPU-n1-0",)


def test_a_card_full_of_models_is_liked_less_by_a_new_one() -> None:
    state = cluster(node("n1", gpus=1), node("n2", gpus=1))
    do(state, ObserveCondition(gpu_id="GPU-n1-0", warm=("a", "b")))
    do(state, task(model="c"))
    run_pass(state)
    assert state.tasks[1].node_id == "n2"


@pytest.mark.parametrize("worse", [{"load_band": 1}, {"heat_band": 1}])
def test_a_busy_or_hot_card_comes_later(worse) -> None:
    state = cluster(node("n1"), node("n2"))
    do(state, ObserveCondition(gpu_id="GPU-n1-0", **worse))
    do(state, task())
    run_pass(state)
    assert state.tasks[1].node_id == "n2"


def test_a_rested_card_comes_first() -> None:
    state = cluster(node("n1"), node("n2"))
    do(state, ObserveCondition(gpu_id="GPU-n2-0", rest_band=2))
    do(state, task())
    run_pass(state)
    assert state.tasks[1].node_id == "n2"


def linked(name: str, pairs: tuple[tuple[int, int], ...], count: int = 4):
    """Cards of which some pairs are on NVLink, and halves on a switch."""
    cards = []
    for index in range(count):
        near = tuple(
            (
                f"{name}-{other}",
                102
                if (min(index, other), max(index, other)) in pairs
                else 20
                if other // 2 == index // 2
                else 10,
            )
            for other in range(count)
            if other != index
        )
        cards.append(gpu(f"{name}-{index}", on=name, index=index, near=near))
    return node(name, gpus=tuple(cards))


@pytest.mark.parametrize("settings", [BALANCED, PACK], ids=["balanced", "pack"])
def test_two_cards_on_nvlink_go_together(settings) -> None:
    state = cluster(linked("n1", pairs=((0, 2), (1, 3))), task(2), task(2), settings=settings)
    run_pass(state)
    assert set(state.tasks[1].gpu_ids) == {"n1-0", "n1-2"}
    assert set(state.tasks[2].gpu_ids) == {"n1-1", "n1-3"}


@pytest.mark.parametrize("settings", [BALANCED, PACK], ids=["balanced", "pack"])
def test_without_nvlink_a_common_switch_is_next(settings) -> None:
    state = cluster(linked("n1", pairs=()), task(1), settings=settings)
    run_pass(state)
    taken = state.tasks[1].gpu_ids[0]
    do(state, task(2))
    run_pass(state)
    assert taken == "n1-0"
    assert set(state.tasks[2].gpu_ids) == {"n1-2", "n1-3"}


@pytest.mark.parametrize("settings", [BALANCED, PACK], ids=["balanced", "pack"])
def test_of_many_cards_those_on_nvlink_go_together(settings) -> None:
    """More sets of three than are compared one by one."""
    pairs = ((1, 6), (6, 9), (1, 9), (0, 1))
    state = cluster(linked("n1", pairs=pairs, count=12), task(3), settings=settings)
    run_pass(state)
    assert set(state.tasks[1].gpu_ids) == {"n1-1", "n1-6", "n1-9"}


def test_packing_fills_a_node_without_gpus_with_tasks_that_need_none() -> None:
    state = cluster(node("n1", gpus=0, cpus=2), task(0, cpus=1, count=3), settings=PACK)
    assert run_pass(state) == [1, 2]


def test_packing_keeps_a_node_whole() -> None:
    state = cluster(node("n1", gpus=4), node("n2", gpus=4), task(count=3), task(4), settings=PACK)
    run_pass(state)
    assert {state.tasks[number].node_id for number in (1, 2, 3)} == {"n1"}
    assert state.tasks[4].node_id == "n2"


def test_packing_puts_shares_together() -> None:
    state = cluster(node("n1", gpus=2), task(count=4, share=0.25), settings=PACK)
    run_pass(state)
    assert {state.tasks[number].gpu_ids for number in (1, 2, 3, 4)} == {("GPU-n1-0",)}


def test_packing_takes_the_first_card_of_a_node_by_index() -> None:
    """The order of its idle cards is by score, and packing ranks nodes, not cards."""
    state = cluster(node("n1", gpus=2), settings=PACK)
    do(state, ObserveCondition(gpu_id="GPU-n1-0", heat_band=2))
    do(state, task())
    run_pass(state)
    assert state.tasks[1].gpu_ids == ("GPU-n1-0",)


def test_packing_learns_what_tasks_are_like_and_forgets_nothing_in_a_fork() -> None:
    state = cluster(node("n1", gpus=8), task(count=20, cpus=2), settings=PACK)
    run_pass(state)
    assert state.typical.counted == 20
    assert state.typical.cpus_milli_per_gpu == 2_000
    fork = state.fork()
    for each in (state, fork):
        do(each, finished(1))
        assert run_pass(each) == [9]
    assert state.tasks[9].gpu_ids == fork.tasks[9].gpu_ids


@pytest.mark.parametrize("settings", [BALANCED, PACK], ids=["balanced", "pack"])
def test_constraints_select_nodes(settings) -> None:
    state = cluster(
        node("n1", labels={"zone": "a"}),
        node("n2", labels={"zone": "b", "disk": "nvme"}),
        task(constraints=(("zone", True, ("b", "c")),)),
        task(constraints=(("disk", False, ("nvme",)),)),
        settings=settings,
    )
    run_pass(state)
    assert (state.tasks[1].node_id, state.tasks[2].node_id) == ("n2", "n1")


def test_a_constraint_that_no_node_meets_is_refused() -> None:
    state = cluster(node("n1", labels={"zone": "a"}))
    refused = tried(state, task(constraints=(("zone", True, ("x",)),)))
    assert refused == NeverFits(entry=0, lacks="constraints", requested="zone=x", largest=1)


def test_a_constraint_that_shuts_out_free_nodes_is_a_reason_to_wait() -> None:
    state = cluster(node("n1"), node("n2"), task(constraints=(("node", True, ("n1",)),)))
    run_pass(state)
    do(state, task(constraints=(("node", True, ("n1",)),)))
    run_pass(state)
    found = {blocker.code for blocker in explain(state, 2, state.last_at).blockers}
    assert found == {"constraints", "gpus_busy"}


@pytest.mark.parametrize("settings", [BALANCED, PACK], ids=["balanced", "pack"])
def test_reserved_cards_and_draining_nodes_are_never_used(settings) -> None:
    cards = (gpu("kept", index=0, reserved=True), gpu("free", index=1))
    state = cluster(node("n1", gpus=cards), node("n2"), settings=settings)
    do(state, DrainNode(node_id="n2"))
    do(state, task(count=3))
    assert run_pass(state) == [1]
    assert state.tasks[1].gpu_ids == ("free",)
    do(state, DrainNode(node_id="n1"))
    do(state, task(0, cpus=1))
    assert run_pass(state) == []
