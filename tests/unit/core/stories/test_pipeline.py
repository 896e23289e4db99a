"""A night's pipeline, as a story: prepare, ten trainings two at a time, a report; and a mail if anything fails."""

from __future__ import annotations

from building import cluster, do, finished, node, on, run_pass, task
from dgpu.core.commands import ChangePriority, HoldTasks, ReleaseTasks
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.state import ClusterState

PREPARE, FIRST, LAST, REPORT, MAIL = 1, 2, 11, 12, 13


def pipeline() -> ClusterState:
    return cluster(
        node("n1", gpus=4),
        task(),
        task(array="0-9%2", after=(on(PREPARE),)),
        task(gpus=0, after=(on(FIRST),)),  # the id of an array means all of it
        task(gpus=0, after=(on(REPORT, "any"),)),
    )


def end(state: ClusterState, task_id: int, exit_code: int = 0) -> list[int]:
    do(state, finished(state.tasks[task_id].lease_id, exit_code))
    placed = run_pass(state)
    check_invariants(state)
    return placed


def test_all_goes_well() -> None:
    state = pipeline()
    assert run_pass(state) == [PREPARE]
    assert end(state, PREPARE) == [FIRST, FIRST + 1]
    for task_id in range(FIRST, LAST - 1):
        assert end(state, task_id) == [task_id + 2]
    assert end(state, LAST - 1) == []
    assert end(state, LAST) == [REPORT]
    assert end(state, REPORT) == [MAIL]
    assert end(state, MAIL) == []
    assert {each.status.value for each in state.tasks.values()} == {"success"}


def test_one_training_fails_and_the_report_is_never_written_but_the_mail_is() -> None:
    state = pipeline()
    run_pass(state)
    end(state, PREPARE)
    assert end(state, FIRST, exit_code=1) == [FIRST + 2, MAIL]
    report = state.tasks[REPORT]
    assert (report.status.value, report.reason) == ("cancelled", "dependency_failed")
    assert report.error == "it waited for the success of task-2, which ended otherwise"


def test_a_person_steps_in() -> None:
    """The fourth training is urgent, the second had better wait for a fix."""
    state = pipeline()
    run_pass(state)
    do(state, HoldTasks(task_ids=(FIRST + 1,)))
    do(state, ChangePriority(task_ids=(FIRST + 3,), priority=90))
    assert end(state, PREPARE) == [FIRST + 3, FIRST]
    told = explain(state, FIRST + 1, state.last_at)
    assert [each.code for each in told.blockers][:2] == ["held", "array_limit"]
    do(state, ReleaseTasks(task_ids=(FIRST + 1,)))
    assert run_pass(state) == []  # two run already
    assert end(state, FIRST) == [FIRST + 1]
