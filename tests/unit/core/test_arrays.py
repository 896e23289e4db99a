"""Arrays: one submit, many tasks, some of them at a time."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, node, run_pass, task, tried
from building.lockstep import remade
from dgpu.core.commands import CancelTasks, ChangePriority
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.array import NoArray, indexes, parse_array
from dgpu.core.model.task import Outcome
from dgpu.core.rejections import UnknownArray


@pytest.mark.parametrize(
    ("text", "expected", "limit"),
    [
        ("0-9", list(range(10)), 0),
        ("0-9%3", list(range(10)), 3),
        ("1,3,7-12:2%2", [1, 3, 7, 9, 11], 2),
        ("5", [5], 0),
        ("0-3%4", [0, 1, 2, 3], 0),  # a limit that cannot be reached
        (" 0 - 2 ", [0, 1, 2], 0),
    ],
)
def test_indexes_are_read(text, expected, limit) -> None:
    plan = parse_array(text)
    assert (list(indexes(plan.ranges)), plan.limit) == (expected, limit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "3-1",
        "0-9%0",
        "0-9%",
        "0-9%x",
        "1,1",
        "0-5,3",
        "-1",
        "0-9:0",
        "1,,2",
        "0-9999999999",
        "٣",
        "0-9\n",
    ],
)
def test_what_is_no_array_is_refused(text) -> None:
    with pytest.raises(NoArray):
        parse_array(text)


def test_ten_million_tasks_are_refused_with_the_limit() -> None:
    with pytest.raises(NoArray, match=r"at most 10,000 tasks, not of 10,000,000"):
        parse_array("0-9999999")
    with pytest.raises(NoArray, match=r"10,000"):
        parse_array(",".join(f"{each}-{each + 4999}" for each in (0, 10_000, 20_000)))


def test_a_text_of_4096_characters_is_read_and_a_longer_one_refused() -> None:
    text = "0-9".ljust(4_096)
    assert [*indexes(parse_array(text).ranges)] == [*range(10)]
    with pytest.raises(NoArray, match="at most 4096 characters"):
        parse_array(text + " ")


def test_each_task_has_its_index() -> None:
    state = cluster(node("n1", gpus=4), task(array="2,5-6"))
    assert [(each.array_id, each.array_index) for each in state.tasks.values()] == [(1, 2), (1, 5), (1, 6)]


def test_no_more_than_the_limit_run_at_once() -> None:
    state = cluster(node("n1", gpus=8), task(array="0-5%2"))
    assert run_pass(state) == [1, 2]
    assert run_pass(state) == []
    do(state, finished(state.tasks[1].lease_id))
    assert run_pass(state) == [3]
    check_invariants(state)


def test_a_full_array_blocks_nobody_else() -> None:
    state = cluster(node("n1", gpus=8), task(array="0-5%1"), task(), task(gpus=2))
    assert run_pass(state) == [1, 7, 8]
    told = explain(state, 2, state.last_at)
    assert told.blockers[0].code == "array_limit"
    assert told.blockers[0].numbers == {"array": "task-1", "running": 1, "limit": 1}


def test_a_task_that_is_tried_again_later_leaves_its_place_to_others() -> None:
    state = cluster(node("n1", gpus=8), task(array="0-3%1"))
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    assert run_pass(state) == [2]
    do(state, finished(2), at=state.last_at + 60_000)
    assert run_pass(state) == [1]
    check_invariants(state)


def test_the_limit_holds_for_tasks_of_another_priority_too() -> None:
    state = cluster(node("n1", gpus=8), task(array="0-3%1"))
    do(state, ChangePriority(task_ids=(4,), priority=90))
    assert run_pass(state) == [4]
    assert run_pass(state) == []
    check_invariants(state)


def test_a_whole_array_is_cancelled_by_its_id() -> None:
    state = cluster(node("n1", gpus=8), task(array="0-3%2"), task())
    run_pass(state)
    do(state, CancelTasks(array_id=1))
    assert [each.status.value for each in state.tasks.values()][2:4] == ["cancelled", "cancelled"]
    assert [each.cancelling for each in state.tasks.values()] == [True, True, False, False, False]
    assert tried(state, CancelTasks(array_id=2)) == UnknownArray(array_id=2)


def test_a_state_made_from_a_snapshot_counts_each_running_task_of_an_array_once() -> None:
    """After a restart, as many tasks run at a time as before."""
    state = cluster(node("n1", gpus=4), task(array="0-3%2"))
    assert run_pass(state) == [1, 2]
    do(state, finished(1))
    assert run_pass(remade(state)) == [3]
