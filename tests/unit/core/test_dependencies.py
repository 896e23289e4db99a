"""Tasks that wait for the ends of others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import cluster, do, finished, node, on, run_pass, task, tried
from dgpu.core.commands import CancelTasks, RunPass, Tick
from dgpu.core.decide.schedule import pass_due
from dgpu.core.events import TasksCancelled
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.dependencies import of_entry
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Restart, TaskStatus
from dgpu.core.rejections import (
    DependencyForgotten,
    DependencyNeverMet,
    TooManyDependencies,
    UnknownDependency,
)
from dgpu.core.state import ClusterState


def end(state: ClusterState, task_id: int, exit_code: int = 0) -> None:
    do(state, finished(state.tasks[task_id].lease_id, exit_code))


def statuses(state: ClusterState) -> list[str]:
    check_invariants(state)
    return [each.status.value for each in state.tasks.values()]


def test_a_task_starts_only_after_the_one_it_waits_for() -> None:
    state = cluster(node("n1", gpus=2), task(), task(after=(on(1),)))
    assert run_pass(state) == [1]
    end(state, 1)
    assert run_pass(state) == [2]


@pytest.mark.parametrize(
    ("when", "exit_code", "expected"),
    [
        ("ok", 0, "running"),
        ("ok", 1, "cancelled"),
        ("any", 0, "running"),
        ("any", 1, "running"),
        ("failed", 0, "cancelled"),
        ("failed", 1, "running"),
    ],
)
def test_the_end_that_is_waited_for_decides(when, exit_code, expected) -> None:
    state = cluster(node("n1", gpus=2), task(), task(after=(on(1, when),)))
    run_pass(state)
    end(state, 1, exit_code)
    run_pass(state)
    assert statuses(state)[1] == expected


def test_a_cancelled_task_is_an_end_but_neither_a_success_nor_a_failure() -> None:
    state = cluster(
        node("n1", gpus=3),
        task(),
        task(after=(on(1, "any"),)),
        task(after=(on(1, "failed"),)),
        task(after=(on(1),)),
    )
    do(state, CancelTasks(task_ids=(1,)))
    run_pass(state)
    assert statuses(state) == ["cancelled", "running", "cancelled", "cancelled"]


def test_all_of_several_must_end_well() -> None:
    state = cluster(node("n1", gpus=3), task(count=2), task(after=(on(1), on(2))))
    run_pass(state)
    end(state, 2)
    assert run_pass(state) == []
    end(state, 1)
    assert run_pass(state) == [3]


def test_a_failure_ends_the_whole_chain_behind_it_with_its_reason() -> None:
    state = cluster(node("n1", gpus=2), task(), *(task(after=(on(each),)) for each in range(1, 6)))
    run_pass(state)
    end(state, 1, exit_code=3)
    assert pass_due(state)
    run_pass(state)
    assert statuses(state) == ["failed"] + ["cancelled"] * 5
    assert {each.reason for each in state.tasks.values() if each.id > 1} == {"dependency_failed"}
    assert "the success of task-1" in state.tasks[2].error
    assert not pass_due(state)


def test_a_long_chain_ends_in_bounded_portions() -> None:
    state = cluster(node("n1", gpus=2), task(), task(count=2_500, after=(on(1),)))
    run_pass(state)
    end(state, 1, exit_code=1)
    portions = []
    while pass_due(state):
        events = do(state, RunPass())
        portions.append(sum(len(each.task_ids) for each in events if isinstance(each, TasksCancelled)))
    assert portions == [1_000, 1_000, 500]


def test_a_retry_is_not_an_end() -> None:
    state = cluster(node("n1", gpus=2), task(restart=Restart.ON_FAILURE, max_retries=1), task(after=(on(1),)))
    run_pass(state)
    end(state, 1, exit_code=1)
    assert run_pass(state) == []
    assert statuses(state)[1] == "pending"


def test_why_names_what_it_waits_for() -> None:
    state = cluster(node("n1", gpus=2), task(), task(after=(on(1, "any"),)))
    told = explain(state, 2, state.last_at)
    assert [blocker.code for blocker in told.blockers] == ["dependency", "tasks_ahead"]
    assert "it waits for the end of task-1" in told.summary


def test_tasks_that_were_never_submitted_are_refused_by_name() -> None:
    state = cluster(node("n1"), task())
    assert tried(state, task(after=(on(7),))) == UnknownDependency(entry=0, task_id=7)
    # Not even the task itself: its id is given only now.
    assert tried(state, task(after=(on(2),))) == UnknownDependency(entry=0, task_id=2)


def test_what_has_ended_already_is_settled_at_once() -> None:
    state = cluster(node("n1", gpus=2), task())
    run_pass(state)
    end(state, 1)
    do(state, task(after=(on(1),)))
    assert not state.after
    refused = tried(state, task(after=(on(1, "failed"),)))
    assert refused == DependencyNeverMet(entry=0, task_id=1, when="failed", status="success")


def test_what_is_out_of_memory_is_for_the_service_to_look_up() -> None:
    state = cluster(node("n1", gpus=2), task(), settings=Settings(keep_finished=0))
    run_pass(state)
    end(state, 1)
    do(state, Tick(history_at=state.last_at))
    assert 1 not in state.tasks
    assert tried(state, task(after=(on(1),))) == DependencyForgotten(entry=0, on=(on(1),))
    do(state, task(after=(on(1, "any"),)))
    do(state, replace(task(after=(on(1),)), met=(on(1),)))
    assert not state.after


def test_the_id_of_an_array_means_all_of_its_tasks() -> None:
    state = cluster(node("n1", gpus=3), task(array="0-2"), task(after=(on(1),)))
    run_pass(state)
    for task_id in (1, 2, 3):
        assert statuses(state)[3] == "pending"
        end(state, task_id)
        run_pass(state)
    assert statuses(state)[3] == "running"


def test_a_task_may_wait_for_earlier_entries_of_its_own_submit() -> None:
    first, second = task(), task(after=(on(of_entry(0), "failed"), on(1, "any")))
    state = cluster(node("n1", gpus=2), task())
    do(state, replace(first, entries=(*first.entries, *second.entries)))
    check_invariants(state)
    assert [(each.task_id, each.when.value) for each in state.after[3].on] == [(1, "any"), (2, "failed")]
    run_pass(state)
    end(state, 1)
    end(state, 2, 1)
    run_pass(state)
    assert statuses(state)[2] == "running"


@pytest.mark.parametrize("place", [0, 1])
def test_an_entry_that_is_not_earlier_is_refused(place) -> None:
    state = cluster(node("n1"))
    entries = task(after=(on(of_entry(place)),)).entries + task().entries
    assert isinstance(tried(state, replace(task(), entries=entries)), UnknownDependency)


def test_more_dependencies_than_memory_should_hold_are_refused() -> None:
    state = cluster(node("n1"), task(count=1_000))
    everything = tuple(on(each) for each in range(1, 1_001))
    refused = tried(state, task(count=1_000, after=everything))
    assert refused == TooManyDependencies(entry=0, number=1_000_000, limit=100_000)


def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    state = cluster(node("n1", gpus=2), task(), task(after=(on(1),)))
    do(state, CancelTasks(task_ids=(2,)))
    assert not state.after
    assert state.dependents.facts() == ({}, [])
    run_pass(state)
    end(state, 1)
    assert state.tasks[2].status is TaskStatus.CANCELLED


def test_those_that_wait_for_each_other_are_cancelled_together() -> None:
    state = cluster(node("n1", gpus=2), task(held=True), task(after=(on(1, "any"),)))
    do(state, CancelTasks())
    assert statuses(state) == ["cancelled", "cancelled"]
    assert not state.after
