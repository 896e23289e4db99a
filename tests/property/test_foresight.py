"""Why, when and what if, on any cluster: asking changes nothing, and what is told is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from building import cluster, do, node, run_pass, task, tried
from building.changes import starts_it
from dgpu.core.apply.task import reshape
from dgpu.core.commands import (
    CancelTasks,
    DrainNode,
    HoldTasks,
    LoseNode,
    ReleaseTasks,
    ReportStarted,
    ResumeNode,
    RunPass,
    SetQuota,
    SetTenant,
)
from dgpu.core.digest import digest
from dgpu.core.foresight import blockers
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.foresight.forward import end_task
from dgpu.core.foresight.sooner import sooner
from dgpu.core.foresight.whatif import lose, whatif
from dgpu.core.invariants import check_invariants
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

NODES = {
    "n1": (2, "V100", 16_384),
    "n2": (2, "V100", 16_384),
    "n3": (1, "T4", 16_384),
    "n4": (3, "V100", 32_768),
}
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

tasks = st.builds(
    task,
    gpus=st.sampled_from([1, 2, 3, 0]),
    count=st.integers(1, 3),
    priority=st.sampled_from([10, 50, 90]),
    pool=st.sampled_from(Pool),
    tenant=st.sampled_from(["a", "b"]),
    models=st.sampled_from([(), ("T4",), ("V100",)]),
    memory_mb=st.sampled_from([0, 8_192, 20_480]),
    cpus=st.sampled_from([0, 1, 6]),
    timeout_ms=st.sampled_from([1_000, 60_000]),
    constraints=st.sampled_from([(), (("node", True, ("n1", "n3")),)]),
    nodes=st.sampled_from([1, 1, 1, 2]),
)
deeds = st.one_of(
    tasks,
    st.builds(DrainNode, node_id=st.sampled_from(sorted(NODES))),
    st.builds(LoseNode, node_id=st.sampled_from(sorted(NODES)), reason=st.just("silent")),
    st.builds(ReportStarted, lease_id=st.integers(1, 8)),
    st.builds(HoldTasks, task_ids=st.integers(1, 12).map(lambda number: (number,))),
    st.just(RunPass()),
    st.sampled_from(["end the oldest", "end the newest"]),
)
rules = st.builds(
    Settings,
    memory_margin_mb=st.just(0),
    reservations=st.sampled_from([0, 1, 8]),
    quota=st.builds(
        Quota,
        online_ppm=st.sampled_from([300_000, 700_000]),
        mode=st.sampled_from(QuotaMode),
        reclaim=st.sampled_from(Reclaim),
    ),
    tenants=st.sampled_from([(), (Tenant(id="a", max_gpus=2), Tenant(id="b", max_running=1))]),
)


@st.composite
def clusters(draw: Callable[[Any], Any]) -> ClusterState:
    state = cluster(settings=draw(rules))
    for name, (gpus, model, memory_mb) in NODES.items():
        do(state, node(name, gpus=gpus, model=model, memory_mb=memory_mb, cpus=8))
    for first in draw(st.lists(tasks, min_size=4, max_size=6)):
        tried(state, first)
    run_pass(state)
    for deed in draw(st.lists(deeds, max_size=8)):
        if not isinstance(deed, str):
            tried(state, deed)
        elif state.leases:
            lease_id = (min if "oldest" in deed else max)(state.leases)
            end_task(state, state.tasks[state.leases[lease_id].task_id], state.last_at + 1_000)
    run_pass(state, full=True)
    check_invariants(state)
    return state


def waiting(state: ClusterState) -> list[int]:
    return [each.id for each in state.tasks.values() if each.status is TaskStatus.PENDING]


def codes(state: ClusterState, task_id: int) -> set[str]:
    told = explain(state, task_id, state.last_at)
    assert isinstance(told, Explanation)
    return {each.code for each in told.blockers}


@MANY
@given(clusters(), st.one_of(tasks, deeds.filter(lambda deed: not isinstance(deed, str))))
def test_asking_changes_nothing(state: ClusterState, change: Any) -> None:
    before = digest(state)
    at = state.last_at + 1
    forecast(state, at)
    for changes in (
        (change,),
        lose("n1"),
        (node("n9", gpus=8),),
        (SetQuota(online_ppm=500_000), DrainNode(node_id="n2")),
    ):
        whatif(state, changes, at)
    for task_id in waiting(state)[:3]:
        sooner(state, task_id, at)
    assert digest(state) == before
    check_invariants(state)


@MANY
@given(clusters(), st.data())
def test_what_is_told_to_start_a_task_starts_it(state: ClusterState, data: Any) -> None:
    if candidates := waiting(state):
        task_id = data.draw(st.sampled_from(candidates))
        for change in sooner(state, task_id, state.last_at):
            assert starts_it(state.fork(), task_id, change), change


@MANY
@given(clusters(), tasks)
def test_who_would_start_by_a_submit_does_start_by_it(state: ClusterState, submit: Any) -> None:
    effect = whatif(state, (submit,), state.last_at + 1)
    first, count = state.next_task_id, sum(number for number, _ in submit.entries)
    decision = tried(state, submit)
    if effect.rejected is not None:
        assert decision == effect.rejected
        return
    run_pass(
        state, at=state.last_at
    )  # the same moment: a millisecond later, one more may delay a reservation
    running = {each.id for each in state.tasks.values() if each.status is TaskStatus.RUNNING}
    assert {each.task_id for each in effect.starts if each.is_new} == running & set(
        range(first, first + count)
    )
    assert {each.task_id for each in effect.waits} == set(range(first, first + count)) - running


# blockers


@pytest.mark.patches_core
@MANY
@given(clusters())
def test_nodes_that_are_taken_together_say_the_same_as_each_alone(state: ClusterState) -> None:
    demands = {state.queue.shapes[state.tasks[task_id].shape_id].demand for task_id in waiting(state)}
    together = {demand: blockers.blockers_of(state, demand) for demand in demands}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            blockers, "alike", lambda state, _: [(room, 1) for room in state.rooms.by_node.values()]
        )
        assert together == {demand: blockers.blockers_of(state, demand) for demand in demands}


def empty_cluster(state: ClusterState, _: int) -> None:
    """Nothing runs any more, and what ran does not come back."""
    running = sorted({lease.task_id for lease in state.leases.values()})
    if running:
        tried(state, CancelTasks(task_ids=tuple(running)))
    for task_id in running:
        if state.tasks[task_id].status is TaskStatus.RUNNING:
            end_task(state, state.tasks[task_id], state.last_at, Outcome.STOPPED)


def changed(**fields: Any) -> Callable[[ClusterState, int], None]:
    def change(state: ClusterState, task_id: int) -> None:
        shape = state.shapes[state.tasks[task_id].shape_id]
        reshape(state, task_id, replace(shape, **fields))

    return change


def resume_all(state: ClusterState, _: int) -> None:
    for each in list(state.nodes.values()):
        if each.draining:
            do(state, ResumeNode(node_id=each.id))


def bring_back(state: ClusterState, _: int) -> None:
    for name, (gpus, model, memory_mb) in NODES.items():
        known = state.nodes[name]
        if known.offline_since:
            held = tuple(lease.id for lease in state.node_leases(name))
            do(state, node(name, gpus=gpus, model=model, memory_mb=memory_mb, cpus=8, held=held))


def give_quota(state: ClusterState, task_id: int) -> None:
    pool = state.shapes[state.tasks[task_id].shape_id].pool
    ppm = 1_000_000 if pool is Pool.ONLINE else 0
    do(state, SetQuota(online_ppm=ppm, mode=QuotaMode.BORROW))
    # What the pool holds itself is in its own way too.
    empty_cluster(state, task_id)


def lift_limits(state: ClusterState, task_id: int) -> None:
    tenant_id = state.shapes[state.tasks[task_id].shape_id].tenant_id
    do(state, SetTenant(tenant=Tenant(id=tenant_id)))


def cancel_others(state: ClusterState, task_id: int) -> None:
    if others := [each for each in waiting(state) if each != task_id]:
        do(state, CancelTasks(task_ids=tuple(others)))


def release(state: ClusterState, task_id: int) -> None:
    do(state, ReleaseTasks(task_ids=(task_id,)))


REMOVED_BY: dict[str, Callable[[ClusterState, int], None]] = {
    "gpus_busy": empty_cluster,
    "nodes": lambda state, task_id: (bring_back(state, task_id), resume_all(state, task_id), empty_cluster(state, task_id)),
    "cpus": empty_cluster,
    "ram": empty_cluster,
    "node_full": empty_cluster,
    "gpu_model": changed(gpu_models=()),
    "gpu_memory": changed(gpu_memory_mb=0),
    "constraints": changed(constraints=()),
    "draining": resume_all,
    "offline": bring_back,
    "pool_quota": give_quota,
    "tenant_gpus": lift_limits,
    "tenant_running": lift_limits,
    "held": release,
    "tasks_ahead": cancel_others,
    "reserved_for": cancel_others,
}  # fmt: skip


@MANY
@given(clusters())
def test_a_task_with_no_blocker_but_the_order_does_not_wait(state: ClusterState) -> None:
    for task_id in waiting(state):
        assert codes(state, task_id) - {"tasks_ahead"}, task_id


@MANY
@given(clusters(), st.data())
def test_with_its_blockers_removed_the_task_starts(state: ClusterState, data: Any) -> None:
    candidates = waiting(state)
    if not candidates:
        return
    task_id = data.draw(st.sampled_from(candidates))
    named = codes(state, task_id)
    assert named <= REMOVED_BY.keys()
    # What comes free goes to those ahead, unless they are gone.
    for code in [*sorted(named - {"tasks_ahead"}), "tasks_ahead"]:
        REMOVED_BY[code](state, task_id)
    run_pass(state, full=True)
    assert state.tasks[task_id].status is TaskStatus.RUNNING, (named, explain(state, task_id, state.last_at))


@MANY
@given(clusters(), st.data())
def test_a_blocker_that_is_removed_is_named_no_more(state: ClusterState, data: Any) -> None:
    candidates = waiting(state)
    if not candidates:
        return
    task_id = data.draw(st.sampled_from(candidates))
    for code in sorted(codes(state, task_id)):
        fork = state.fork()
        REMOVED_BY[code](fork, task_id)
        if fork.tasks[task_id].status is TaskStatus.PENDING:
            assert code not in codes(fork, task_id)
