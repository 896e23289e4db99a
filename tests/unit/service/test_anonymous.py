"""A reader of some tenants gets texts and facts without the tasks of others."""

from __future__ import annotations

from msgspec.structs import replace

from building import cluster, node, run_pass, task
from dgpu.service.access.anonymous import (
    events_told_to,
    gpus_told_to,
    node_told_to,
    reason_told_to,
    task_told_to,
    without_tasks,
)
from dgpu.service.views.cluster import gpu_list, node_list
from dgpu.wire.answers import Attempt, TaskAnswer, TaskEvent

STOPPED = "stopped so that task-7 gets the quota of the online pool"
TASK = TaskAnswer(
    task_id="task-3",
    tenant_id="lab",
    pool="batch",
    status="pending",
    priority=50,
    priority_value=50,
    gpu_count=1,
    created_at="",
    error=STOPPED,
    attempts=[Attempt(attempt=1, node="n1", error=STOPPED)],
)
EVENT = TaskEvent(
    index=1, at="", type="task_stop_requested", facts={"task_id": "task-3", "for_task": 7, "error": STOPPED}
)


def test_an_error_names_no_other_task() -> None:
    told = task_told_to(("lab",), TASK)
    assert told.error == told.attempts[0].error == STOPPED.replace("task-7", "another task")
    assert told.task_id == "task-3"
    assert task_told_to(None, TASK) == TASK


def test_why_a_task_is_tried_again_names_no_other_task() -> None:
    """The error of the stop before is part of the reason."""
    reason = {
        "waiting_code": "back_off",
        "waiting": f"it is tried again in 5 s after: {STOPPED}",
        "blockers": [{"code": "back_off", "error": STOPPED}],
    }
    told, anonymous = reason_told_to(("lab",), reason), STOPPED.replace("task-7", "another task")
    assert told["waiting"].endswith(anonymous)
    assert told["blockers"] == [{"code": "back_off", "error": anonymous}]
    assert reason_told_to(None, reason) == reason
    own = {
        "waiting_code": "dependency",
        "waiting": "it waits for task-2",
        "blockers": [{"code": "dependency", "task": "task-2"}],
    }
    assert reason_told_to(("lab",), own) == own


def test_the_program_behind_a_task_is_left_out_with_it() -> None:
    evidence = "2 programs failed on it: task-7 (secret.py --x), task-8 (other)"
    assert without_tasks(evidence) == "2 programs failed on it: another task"


def test_an_event_names_no_other_task() -> None:
    (told,) = events_told_to(("lab",), [EVENT])
    assert told.facts == {"task_id": "task-3", "error": STOPPED.replace("task-7", "another task")}
    assert events_told_to(None, [EVENT]) == [EVENT]


def test_cards_and_nodes_show_own_tasks_only() -> None:
    state = cluster(node("n1", gpus=2), task(tenant="lab"), task(tenant="rival"))
    run_pass(state)
    every, cards = gpu_list(state, {}), gpus_told_to(("lab",), state, gpu_list(state, {}))
    assert sorted(name for gpu in every.gpus for name in gpu.tasks) == ["task-1", "task-2"]
    assert [name for gpu in cards.gpus for name in gpu.tasks] == ["task-1"]
    assert [gpu.status for gpu in cards.gpus] == ["busy", "busy"]
    assert node_told_to(("lab",), state, node_list(state).nodes[0]).tasks == ["task-1"]
    assert node_told_to(None, state, node_list(state).nodes[0]).tasks == ["task-1", "task-2"]


def test_texts_of_cards_name_no_task() -> None:
    state = cluster(node("n1", gpus=1))
    found = gpu_list(state, {})
    card = found.gpus[0]
    health = replace(card.health, evidence="task-7 (train.py)", remark="after task-7")
    named = replace(found, gpus=[replace(card, fault="memory not released by task-7", health=health)])
    told = gpus_told_to(("lab",), state, named).gpus[0]
    assert (told.fault, told.health.evidence) == ("memory not released by another task", "")
    assert told.health.remark == "after another task"
