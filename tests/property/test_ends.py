"""The time at which quota becomes free is the one that a look at every lease gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from building import START, cluster, do, finished, node, run_pass, spec, tried
from dgpu.core.commands import CancelTasks, ReportStarted, SubmitTasks
from dgpu.core.index.ends import Holder
from dgpu.core.model.ids import TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.rules.durations import NEVER
from dgpu.core.rules.openings import Cluster
from dgpu.core.rules.reservations import Planner
from dgpu.core.state import ClusterState

MINUTE = 60_000

submits = st.builds(
    spec,
    st.sampled_from([0, 1, 1, 2]),
    tenant=st.sampled_from(["a", "b"]),
    pool=st.sampled_from(Pool),
    memory_mb=st.sampled_from([0, 8_192]),
    timeout_ms=st.sampled_from([None, MINUTE, 3 * MINUTE]),
    nodes=st.sampled_from([1, 1, 1, 2]),
)
places = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("submit"), submits),
    st.tuples(st.sampled_from(["start", "end", "cancel"]), places),
    st.tuples(st.just("wait"), st.sampled_from([1, MINUTE, 5 * MINUTE])),
)
amounts = st.tuples(st.sampled_from([0, 1_000, 3_000]), st.sampled_from([0, 8_192, 20_000]))


@given(st.lists(steps, min_size=3, max_size=30), amounts)
def test_quota_becomes_free_when_a_look_at_all_leases_says(
    coming: list[tuple[str, object]], amount: tuple[int, int]
) -> None:
    """Tasks of one kind learn from each other, so some are expected to end at a time, and run longer."""
    state = cluster(node("n1", gpus=4), node("n2", gpus=4), settings=Settings(memory_margin_mb=0))
    at = START
    for number in range(4):  # enough runs to expect an end of such tasks
        do(state, SubmitTasks(entries=((1, spec(1, tenant="a", pool=Pool.BATCH)),)), at)
        run_pass(state, at)
        do(state, ReportStarted(lease_id=max(state.leases)), at)
        at += MINUTE + number
        do(state, finished(max(state.leases)), at)
    for deed, what in coming:
        at = take(state, deed, what, at)
        planner = Planner(state, at)
        holders: list[Holder] = [*state.queue.pools.values(), *state.accounts.by_tenant.values()]
        for holder in holders:
            assert planner._freed_at(holder, *amount) == by_looking_at_all(state, holder, *amount, at)


def take(state: ClusterState, deed: str, what: object, at: int) -> int:
    if deed == "wait":
        assert isinstance(what, int)
        return at + what
    if deed == "submit":
        do(state, SubmitTasks(entries=((2, what),)), at)
        run_pass(state, at)
        return at
    assert isinstance(what, int)
    leases = sorted(state.leases)
    if what >= len(leases):
        return at
    lease = state.leases[leases[what]]
    if deed == "start" and not lease.started:
        tried(state, ReportStarted(lease_id=lease.id), at)
    elif deed == "end":
        tried(state, finished(lease.id), at)  # a rank may have ended already
    elif deed == "cancel":
        tried(state, CancelTasks(task_ids=(TaskId(lease.task_id),)), at)
    return at


def by_looking_at_all(state: ClusterState, holder: Holder, milli: int, memory_mb: int, at: int) -> int:
    if milli <= 0 and memory_mb <= 0:
        return 0
    found = []
    for lease in state.leases.values():
        known = state.queue.shapes[state.tasks[lease.task_id].shape_id]
        if lease.gpu_ids and holder in {known.pool, known.account}:
            found.append((Cluster(state, at).ends_at(lease.id), lease))
    for ends_at in sorted({ends_at for ends_at, _ in found}):
        over = [lease for each, lease in found if each <= ends_at]
        of_memory = sum(lease.gpu_memory_mb * len(lease.gpu_ids) for lease in over)
        if sum(lease.gpu_milli for lease in over) >= milli and of_memory >= memory_mb:
            return ends_at
    return NEVER
