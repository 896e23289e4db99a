"""The index of openings gives the nodes that a look at every node gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from building import cluster, finished, node, run_pass, spec, tried
from dgpu.core.commands import SubmitTasks
from dgpu.core.index.line import Line
from dgpu.core.model.settings import Settings
from dgpu.core.rules.access import bookings_in_order
from dgpu.core.rules.openings import Cluster, opening
from dgpu.core.rules.reservations import Planner
from dgpu.core.state import ClusterState

asked = st.builds(
    spec,
    st.sampled_from([0, 1, 1, 2, 3, 4]),
    timeout_ms=st.sampled_from([None, 5_000, 20_000, 60_000]),
    cpus=st.sampled_from([0, 0, 2, 6]),
    nodes=st.sampled_from([1, 1, 2]),
)
shares = st.builds(spec, st.just(1), share=st.sampled_from([0.3, 0.6]), timeout_ms=st.just(20_000))
steps = st.lists(
    st.tuples(
        st.one_of(asked, shares), st.integers(1, 3), st.integers(0, 3), st.sampled_from([1, 3_000, 30_000])
    ),
    min_size=2,
    max_size=12,
)


@given(st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=5), steps)
def test_the_soonest_nodes_are_those_of_a_look_at_all(sizes: list[int], coming: list) -> None:
    nodes = [node(f"n{number}", gpus=gpus, cpus=8) for number, gpus in enumerate(sizes)]
    state = cluster(*nodes, settings=Settings(memory_margin_mb=0, reservations=2))
    for each, count, ends, later in coming:
        tried(state, SubmitTasks(entries=((count, each),)))  # some fit nowhere
        run_pass(state, state.last_at + later)
        for lease_id in sorted(state.leases)[:ends]:
            tried(state, finished(lease_id))
        at = state.last_at
        planner = Planner(state, at)
        for line in state.queue.lines():
            found = planner.anywhere(line, bookings_in_order(state, at))
            nodes_found = None if found is None else sorted(place.node_id for place in found.places)
            assert nodes_found == by_looking_at_all(state, line, at)


def by_looking_at_all(state: ClusterState, line: Line, at: int) -> list[str] | None:
    planner, seen = Planner(state, at), []
    taken = planner._taken(bookings_in_order(state, at))
    for node_id, room in state.rooms.by_node.items():
        found = opening(room, line.demand, Cluster(state, at), taken.get(node_id, ()))
        if found is not None:
            seen.append((found.at, node_id))
    seen.sort()
    chosen = seen[: line.demand.nodes]
    return sorted(node_id for _, node_id in chosen) if len(chosen) == line.demand.nodes else None
