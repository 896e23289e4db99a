"""Branches that stories seldom reach: orders to arrays, words of `why`, entries of the audit log, removed nodes and
tenants, bounds of learned numbers.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import START, cluster, do, finished, node, run_pass, shape, task, tried
from building.calls import call, with_workers
from dgpu.core.commands import (
    CancelTasks,
    ChangePriority,
    Command,
    CreateToken,
    DeleteSecret,
    DrainNode,
    HoldTasks,
    LoseNode,
    ReleaseNode,
    ReleaseTasks,
    RemoveNode,
    RemoveTenant,
    ReportStarted,
    RevokeToken,
    SetSecret,
    SetService,
    SetTenant,
    Tick,
)
from dgpu.core.events import Audited
from dgpu.core.foresight.blockers import blockers_of
from dgpu.core.foresight.explain import _in_words, explain
from dgpu.core.foresight.sooner import sooner
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.demand import demand_of
from dgpu.core.model.estimates import MAX_ESTIMATES, Estimate
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.secrets import Secret
from dgpu.core.model.service import ServiceSpec
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import RUNS_CONTAINERS, Outcome, Pool, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.worker import MAX_LOAD_TIMES, LoadTime, learned
from dgpu.core.rejections import UnknownArray
from dgpu.core.rules.estimate import evicted
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MINUTE = 60_000
RESERVING = Settings(memory_margin_mb=0, reservations=1)


def statuses(state: ClusterState, *task_ids: int) -> list[str]:
    return [state.tasks[task_id].status.value for task_id in task_ids]


# orders


def test_an_order_to_an_array_concerns_its_waiting_tasks_alone() -> None:
    state = cluster(node("n1"), task(array="0-2"), task())
    assert run_pass(state) == [1]
    do(state, HoldTasks(array_id=1))
    assert [state.tasks[task_id].held for task_id in (1, 2, 3, 4)] == [False, True, True, False]
    do(state, ReleaseTasks(array_id=1))
    assert not any(each.held for each in state.tasks.values())
    do(state, ChangePriority(array_id=1, priority=70))
    assert [state.shapes[state.tasks[task_id].shape_id].priority for task_id in (1, 2, 3, 4)] == [
        50,
        70,
        70,
        50,
    ]
    do(state, CancelTasks(array_id=1, status=TaskStatus.PENDING))
    assert statuses(state, 1, 2, 3, 4) == ["running", "cancelled", "cancelled", "pending"]
    assert tried(state, HoldTasks(array_id=9)) == UnknownArray(array_id=9)
    assert tried(state, CancelTasks(array_id=9)) == UnknownArray(array_id=9)


@pytest.mark.parametrize(
    ("only", "stopped"),
    [({"tenant_id": "a"}, [1, 3]), ({"pool": Pool.ONLINE}, [2]), ({"priority": 80}, [3]), ({}, [1, 2, 3])],
)
def test_a_filter_chooses_the_running_tasks_to_cancel(only: dict, stopped: list[int]) -> None:
    state = cluster(
        node("n1", gpus=3),
        task(tenant="a"),
        task(tenant="b", pool=Pool.ONLINE),
        task(tenant="a", priority=80),
    )
    run_pass(state)
    do(state, CancelTasks(status=TaskStatus.RUNNING, **only))
    assert [task_id for task_id, each in state.tasks.items() if each.cancelling] == stopped


def test_a_call_that_is_being_cancelled_ends_with_its_worker() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=9))
    assert statuses(state, 1) == ["cancelled"]


# words


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (1, "1 s"),
        (59_000, "59 s"),
        (61_000, "1 min 1 s"),
        (10 * MINUTE, "10 min"),
        (60 * MINUTE, "1 h 0 min"),
        (48 * 60 * MINUTE - 1_000, "47 h 59 min"),
        (48 * 60 * MINUTE, "2 days"),
    ],
)
def test_a_duration_in_words(ms: int, words: str) -> None:
    assert _in_words(ms) == words


def test_why_of_a_running_gang_names_its_nodes() -> None:
    state = cluster(node("n1"), node("n2"), task(nodes=2))
    run_pass(state)
    for lease_id in (1, 2):
        do(state, ReportStarted(lease_id=lease_id))
    assert explain(state, 1, state.last_at).summary == "task-1 runs on nodes n1, n2, attempt 1"


def test_why_of_a_task_that_starts_on_a_drained_node_says_so() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    do(state, DrainNode(node_id="n1", reason="new disk"))
    told = explain(state, 1, state.last_at).summary
    assert told == "task-1 is starting on node n1, which takes no tasks now (new disk)"


def test_a_higher_priority_that_would_start_a_task_now_is_named() -> None:
    strict = replace(RESERVING, quota=Quota(online_ppm=500_000, mode=QuotaMode.STRICT))
    state = cluster(node("n1", gpus=4), task(timeout_ms=MINUTE), settings=strict)
    run_pass(state)
    do(state, task(2, priority=80))
    do(state, task())
    assert run_pass(state) == [], "the quota is reserved"
    found = {each.change: each for each in sooner(state.fork(), 3, state.last_at)}
    assert found["priority"].facts == {"priority": 81, "instead_of": 50}
    assert found["priority"].detail == "with priority 81 instead of 50"


# the audit log


def entry_of(state: ClusterState, command: Command) -> tuple[str, str, int]:
    *_, told = do(state, command)
    assert isinstance(told, Audited)
    return told.entry.subject, told.entry.tenant_id, told.entry.tasks


def test_the_audit_log_names_the_tenant_token_secret_or_tasks_of_a_command() -> None:
    said = AuditEntry(user="ann")
    state = cluster(node("n1"))
    lab = Tenant(id="lab")
    token = Token(id="t1", name="ci", user="ann", role="user", keyed_hash=b"", tenants=("lab",))
    secret = Secret(tenant_id="lab", name="key", sealed=b"x")
    assert entry_of(state, SetTenant(tenant=lab, audit=said)) == ("lab", "lab", 0)
    assert entry_of(state, CreateToken(token=token, audit=said)) == ("t1", "lab", 0)
    assert entry_of(state, RevokeToken(token_id="t1", audit=said)) == ("t1", "lab", 0)
    assert entry_of(state, SetSecret(secret=secret, audit=said)) == ("key", "lab", 0)
    assert entry_of(state, DeleteSecret(tenant_id="lab", name="key", audit=said)) == ("key", "lab", 0)
    do(state, task(tenant="lab", count=2))
    assert entry_of(state, ChangePriority(priority=60, task_ids=(1, 2), audit=said)) == ("", "lab", 2)
    run_pass(state)
    assert entry_of(state, CancelTasks(task_ids=(1,), audit=said)) == ("task-1", "lab", 1)
    assert entry_of(state, CancelTasks(task_ids=(2,), audit=said)) == ("task-2", "lab", 1)
    gone = Tenant(id="gone")
    do(state, SetTenant(tenant=gone))
    assert entry_of(state, RemoveTenant(tenant_id="gone", audit=said)) == ("gone", "gone", 0)


# what goes with a node or a tenant


def test_a_reservation_goes_with_its_node_and_is_made_on_another() -> None:
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), settings=RESERVING)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(2, timeout_ms=2 * MINUTE), START)
    run_pass(state, START)
    do(state, task(2))
    run_pass(state)
    first = state.tasks[1].node_id
    assert [place.node_id for place in state.reservations[3].places] == [first]
    do(state, LoseNode(node_id=first, reason="silent"))
    do(state, ReleaseNode(node_id=first, reason="lease over"))
    do(state, RemoveNode(node_id=first))
    assert not any(place.node_id == first for made in state.reservations.values() for place in made.places)


def test_secrets_and_services_go_with_their_tenant() -> None:
    state = cluster(node("n1"))
    for name in ("lab", "other"):
        do(state, SetTenant(tenant=Tenant(id=name)))
        do(state, SetSecret(secret=Secret(tenant_id=name, name="key", sealed=b"x")))
        serves = ServiceSpec(task=task(tenant=name, pool=Pool.ONLINE).entries[0][1], port=80)
        do(state, SetService(tenant_id=name, name="web", spec=serves))
    do(state, RemoveTenant(tenant_id="lab"))
    assert [each.tenant_id for each in state.secrets.values()] == ["other"]
    assert [each.tenant_id for each in state.services.values()] == ["other"]


# reservations of a long queue


@pytest.mark.parametrize(("waiting", "reserved"), [(100, True), (101, False)])
def test_a_long_queue_of_one_demand_reserves_nothing(waiting: int, reserved: bool) -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE), settings=RESERVING)
    run_pass(state)
    do(state, task(count=waiting, timeout_ms=MINUTE))
    run_pass(state)
    assert bool(state.reservations) is reserved
    do(state, task(memory_mb=1_024, timeout_ms=MINUTE))
    run_pass(state)
    assert state.reservations, "two demands"


# bounds of learned numbers


def test_the_oldest_half_of_load_times_is_forgotten_when_there_are_too_many() -> None:
    known: dict[str, LoadTime] = {}
    for number in range(MAX_LOAD_TIMES + 1):
        learned(known, f"m{number}", 1_000, at=number)
    assert len(known) == MAX_LOAD_TIMES // 2 + 1
    assert f"m{MAX_LOAD_TIMES}" in known
    assert "m0" not in known
    before = known[f"m{MAX_LOAD_TIMES}"]
    learned(known, f"m{MAX_LOAD_TIMES}", 3_000, at=9_999)
    assert known[f"m{MAX_LOAD_TIMES}"] == LoadTime(load_ms=1_500, loads=before.loads + 1, seen_at=9_999)


def test_the_estimate_that_was_used_last_the_longest_ago_is_evicted() -> None:
    one = Estimate(tenant_id="lab", base_mb=1)
    estimates = {f"k{number}": replace(one, updated_at=number + 1) for number in range(MAX_ESTIMATES - 1)}
    assert evicted(estimates, "new") is None
    estimates["oldest"] = one
    assert evicted(estimates, "new") == "oldest"
    assert evicted(estimates, "k1") is None


# the queue, page by page


def test_pages_of_the_queue_follow_each_other_with_ageing() -> None:
    state = cluster(settings=Settings(ageing_ms=1_000))
    do(state, node("n1"))
    for number, priority in enumerate([50, 52, 51, 58, 50]):
        do(state, task(priority=priority), START + number * 2_000)
    everything = queue(state, limit=9)
    assert everything == [4, 1, 2, 3, 5]
    for place, task_id in enumerate(everything):
        assert queue(state, limit=9, after=task_id) == everything[place + 1 :]


# why a task fits nowhere


def test_why_counts_nodes_without_a_container_engine_and_names_some() -> None:
    label, _, (engine,) = RUNS_CONTAINERS
    state = cluster(*[node(f"n{number}") for number in range(9)], node("busy", labels={label: engine}))
    do(state, task(constraints=(RUNS_CONTAINERS,)))
    run_pass(state)
    first, _ = blockers_of(state, demand_of(shape(constraints=(RUNS_CONTAINERS,))))
    assert first.numbers == {"nodes": 9, "named": "n0, n1, n2", "more": 6}
    told = "9 nodes with room for it have no container engine that answers: n0, n1, n2 and 6 more"
    assert (first.code, first.detail) == ("containers", told)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (2, []),
        (3, ["needs 3 nodes at once with room for 1 GPU each; 2 have it now"]),
        (4, ["needs 4 nodes with room for one rank each; there are 3 such nodes"]),
    ],
)
def test_why_of_a_gang_counts_the_nodes_with_room(nodes: int, told: list[str]) -> None:
    state = cluster(node("n1"), node("n2"), node("n3"), task())
    run_pass(state)
    assert [each.detail for each in blockers_of(state, demand_of(shape(nodes=nodes)))] == told


# what is forgotten, and when


@pytest.mark.parametrize(
    ("known_up_to", "forgotten"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3])]
)
def test_the_oldest_tasks_are_forgotten_that_are_too_many_and_in_the_history(
    known_up_to: int, forgotten: list[int]
) -> None:
    state = cluster(node("n1", gpus=5), task(count=5), settings=Settings(memory_margin_mb=0, keep_finished=2))
    run_pass(state)
    ends = [START]
    for lease_id in range(1, 6):
        do(state, finished(lease_id))
        ends.append(state.last_at)
    do(state, Tick(history_at=ends[known_up_to]))
    assert [task_id for task_id in range(1, 6) if task_id not in state.tasks] == forgotten


@pytest.mark.parametrize(("after_ms", "left"), [(59_999, 1), (60_000, 0)])
def test_a_task_is_forgotten_when_its_time_is_over(after_ms: int, left: int) -> None:
    state = cluster(node("n1"), task(), settings=Settings(memory_margin_mb=0, keep_finished_ms=MINUTE))
    run_pass(state)
    do(state, finished(1))
    at = state.last_at + after_ms
    do(state, Tick(history_at=at), at)
    assert len(state.tasks) == left


# the time of a reservation of quota


def test_memory_of_a_tenant_is_reserved_for_the_time_when_enough_leases_have_ended() -> None:
    lab = Tenant(id="lab", max_gpu_memory_mb=5 * 4_096)
    state = cluster(node("n1", gpus=8), settings=replace(RESERVING, tenants=(lab,)))
    for minutes in (1, 2, 3):
        do(
            state,
            task(1 if minutes == 3 else 2, tenant="lab", memory_mb=2_048, timeout_ms=minutes * MINUTE),
            START,
        )
    assert run_pass(state, START) == [1, 2, 3]
    do(state, task(2, tenant="lab", memory_mb=8_192, priority=80), START)
    do(state, task(tenant="lab", memory_mb=2_048), START)
    assert run_pass(state, START) == []
    over_ms = 11_000  # kill grace and release
    assert (state.reservations[4].places, state.reservations[4].at) == ((), START + 2 * MINUTE + over_ms)
