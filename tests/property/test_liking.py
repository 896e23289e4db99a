"""The node that a task gets is the best liked one, ranked anew from the facts: none of the product's own ranking is asked."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from building import cluster, do, gpu, node, spec, tried
from building.liking import Liking
from dgpu.core.commands import ObserveCondition, ObserveGpu, RunPass, SubmitTasks
from dgpu.core.events import TaskPlaced
from dgpu.core.model.demand import demand_of
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskSpec
from dgpu.core.state import ClusterState

# load, heat and rest bands, loaded models, memory used by others, memory, model of the GPU
cards = st.tuples(
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([(), (), ("m",), ("x", "y"), ("m", "x")]),
    st.sampled_from([0, 0, 2_048]),
    st.sampled_from([16_384, 16_384, 8_192]),
    st.sampled_from(["V100", "V100", "T4"]),
)
nodes = st.lists(st.lists(cards, min_size=1, max_size=4), min_size=1, max_size=12)
tasks = st.one_of(
    st.builds(
        spec,
        st.sampled_from([0, 1, 2, 2, 3]),
        memory_mb=st.sampled_from([0, 0, 10_240]),
        models=st.sampled_from([(), (), ("V100",)]),
        model=st.sampled_from(["", "", "m"]),
        cpus=st.sampled_from([0, 0, 3]),
    ),
    st.builds(
        spec,
        st.just(1),
        share=st.sampled_from([0.25, 0.5, 0.9]),
        memory_mb=st.sampled_from([0, 0, 4_096]),
        model=st.sampled_from(["", "", "m"]),
    ),
)
BAD, FAIR, GOOD = [(band, band, 0, (), 0, 16_384, "V100") for band in (4, 2, 0)]


@settings(max_examples=200, deadline=None)
@given(nodes, st.lists(tasks, min_size=1, max_size=8))
@example([[GOOD, BAD], [FAIR, GOOD]], [spec(2)])
@example([[GOOD, BAD, BAD], [FAIR, FAIR, FAIR]], [spec(3)])
@example([[GOOD, BAD], [FAIR, FAIR, (2, 2, 0, (), 0, 8_192, "T4")]], [spec(2)])  # a mixed node
def test_a_task_gets_the_best_liked_node(
    sites: list[list[tuple[int, int, int, tuple[str, ...], int, int, str]]], asked: list[TaskSpec]
) -> None:
    state = begun(sites)
    for each in asked:
        tried(state, SubmitTasks(entries=((1, each),)))
    while True:
        twin = state.fork()
        placed = [event for event in do(state, RunPass(limit=1)) if isinstance(event, TaskPlaced)]
        if not placed:
            break
        (grant,) = placed
        task = twin.tasks[grant.task_id]
        shape = twin.shapes[task.shape_id]
        liking = Liking(twin, shape, parole=demand_of(shape).parole)
        assert grant.node_id == liking.best()
        values = [liking.of_card(twin.gpus[gpu_id]) for gpu_id in grant.gpu_ids]
        assert None not in values
        if shape.gpus:
            of_node = liking.of_node(twin.nodes[grant.node_id])
            assert tuple(map(sum, zip(*values, strict=True))) == of_node, "the best cards of the node"
    for task in state.tasks.values():
        if not task.node_id:
            assert Liking(state, state.shapes[task.shape_id], parole=False).best() is None


def begun(sites: list[list[tuple[int, int, int, tuple[str, ...], int, int, str]]]) -> ClusterState:
    state = cluster(settings=Settings(memory_margin_mb=0))
    for number, listed in enumerate(sites):
        name = f"n{number:02}"
        gpus = tuple(
            gpu(f"{name}-{index}", on=name, index=index, model=card[6], memory_mb=card[5])
            for index, card in enumerate(listed)
        )
        do(state, node(name, gpus=gpus, cpus=4))
        for index, (load, heat, rest, warm, foreign_mb, _, _) in enumerate(listed):
            name_of = f"{name}-{index}"
            do(
                state,
                ObserveCondition(gpu_id=name_of, load_band=load, heat_band=heat, rest_band=rest, warm=warm),
            )
            do(state, ObserveGpu(gpu_id=name_of, foreign_mb=foreign_mb))
    return state
