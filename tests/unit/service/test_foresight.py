"""Questions about what would be, answered as JSON from a state."""

from __future__ import annotations

import msgspec

from building import cluster, node, run_pass, spec, task
from dgpu.core.digest import digest
from dgpu.service.follower.foresight import answer, is_small
from dgpu.wire.foresight_answers import Change, WhatifAnswer
from dgpu.wire.questions import Adding, Draining, Hastening, Losing, NewNodes, Question, Submitting


def busy():
    state = cluster(node("n1", gpus=2), task(2, timeout_ms=60_000), task(1, timeout_ms=60_000), task(2))
    run_pass(state)
    return state


def told(state, question) -> WhatifAnswer:
    # As it travels to the follower.
    asked = msgspec.json.decode(msgspec.json.encode(question), type=Question)
    assert asked == question
    before = digest(state)
    raw = answer(state, asked, state.last_at, 42)
    assert digest(state) == before
    return msgspec.json.decode(raw, type=WhatifAnswer)


def test_an_answer_names_the_index_of_the_state_that_was_asked() -> None:
    found = told(busy(), Submitting(entries=((1, spec(1)),)))
    assert found.journal_index == 42
    assert (found.starts, found.stops, found.rejected) == ([], [], None)
    (wait,) = found.waits
    assert (wait.task_id, wait.position) == ("task-4", 3)
    assert [blocker["code"] for blocker in wait.blockers] == ["gpus_busy", "tasks_ahead"]


def test_added_nodes_are_like_those_that_are_there() -> None:
    found = told(busy(), Adding(kinds=(NewNodes(gpus=3, model="V100"),)))
    assert [(start.task_id, start.nodes) for start in found.starts] == [
        ("task-2", ["new-1"]),
        ("task-3", ["new-1"]),
    ]


def test_the_memory_of_a_model_that_nobody_has_must_be_said() -> None:
    found = told(busy(), Adding(kinds=(NewNodes(gpus=3, model="H100"),)))
    assert found.rejected.errors[0].path == "add_nodes[0].memory_mb"
    assert told(busy(), Adding(kinds=(NewNodes(gpus=3, model="H100", memory_mb=81_920),))).rejected is None


def test_new_nodes_get_names_that_are_free() -> None:
    state = cluster(task(4), node("new-1"))
    found = told(state, Adding(kinds=(NewNodes(gpus=4, model="V100", count=2),)))
    assert [start.nodes for start in found.starts] == [["new-2"]]


def test_a_lost_node_names_what_would_stop() -> None:
    found = told(busy(), Losing(node_id="n1"))
    assert [(stop.task_id, stop.node) for stop in found.stops] == [("task-1", "n1")]
    assert told(busy(), Draining(node_id="n9")).rejected.status == 404


def test_what_would_start_a_task_is_a_list_of_changes() -> None:
    state = cluster(node("n1", gpus=2), task(1), task(2))
    run_pass(state)
    raw = answer(state, Hastening(task_id=2), state.last_at, 1)
    changes = msgspec.json.decode(raw, type=list[Change])
    assert [change.change for change in changes] == ["gpu_count", "wait"]


def test_only_small_questions_are_for_the_services_own_loop() -> None:
    state = busy()
    assert is_small(state, Hastening(task_id=2))
    assert is_small(state, Draining(node_id="n1"))
    assert not is_small(state, Submitting(entries=((1_000, spec(1)),)))
    assert not is_small(state, Adding(kinds=(NewNodes(gpus=8, model="V100", count=500),)))
    crowd = cluster(node("n1"), task(count=100))
    assert not is_small(crowd, Draining(node_id="n1"))
    assert is_small(crowd, Hastening(task_id=2))
    assert not is_small(cluster(node("n1"), task(count=2_000)), Hastening(task_id=2))
