"""The nearest node of `why`: the one that lacks least."""

from __future__ import annotations

from building import cluster, do, gpu, lease, node, run_pass, task
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.state import ClusterState


def nearest(state: ClusterState, task_id: int) -> tuple[str, dict[str, int]]:
    told = explain(state, task_id, state.last_at)
    assert isinstance(told, Explanation)
    assert told.nearest is not None
    return told.nearest.node_id, told.nearest.lacks


def mixed(name: str, *models: str) -> tuple:
    return tuple(
        gpu(f"{name}-{index}", on=name, index=index, model=model) for index, model in enumerate(models)
    )


def test_on_a_node_of_several_models_only_idle_cards_that_would_do_count() -> None:
    """An idle T4 stands first there. Two of its three V100 are busy."""
    state = cluster(
        node("a", gpus=mixed("a", "T4", "V100", "V100", "V100")),
        node("b", gpus=mixed("b", "V100", "V100", "V100")),
        task(2, models=("V100",)),
        task(2),
        lease(1, on="a"),
        lease(2, on="b"),
    )
    do(state, task(3, models=("V100",)))
    assert nearest(state, 3) == ("a", {"gpus": 2})


def test_a_node_whose_first_card_would_do_and_whose_others_would_not_lacks_the_rest() -> None:
    state = cluster(
        node("a", gpus=mixed("a", "V100", "T4", "T4", "T4", "V100", "V100")),
        node("b", gpus=mixed("b", "V100", "V100", "V100")),
        task(2, models=("V100",)),
        task(1),
        lease(1, on="a"),
        lease(2, on="b"),
    )
    do(state, task(3, models=("V100",)))
    assert nearest(state, 3) == ("b", {"gpus": 1}), "a has four idle cards, and one of them would do"


def shares(*on: tuple[str, float]) -> ClusterState:
    """Two nodes of one GPU, each with a task that holds so much of it, and two CPUs."""
    state = cluster(node("a", gpus=1, cpus=8), node("b", gpus=1, cpus=4))
    for name, share in on:
        do(state, task(1, share=share, cpus=2, constraints=(("node", True, (name,)),)))
    assert run_pass(state) == [1, 2]
    do(state, task(1, share=0.5, cpus=3))
    assert run_pass(state) == []
    return state


def test_a_share_lacks_no_gpu_where_it_has_room_beside_others() -> None:
    """No card is idle on either node. On the second, half of one is left, and a CPU is lacking."""
    assert nearest(shares(("a", 1), ("b", 0.5)), 3) == ("b", {"cpus_milli": 1_000})


def test_a_share_lacks_a_gpu_where_others_leave_too_little() -> None:
    assert nearest(shares(("a", 0.6), ("b", 0.5)), 3) == ("b", {"cpus_milli": 1_000})
    assert nearest(shares(("a", 0.6), ("b", 0.6)), 3) == ("a", {"gpus": 1})
