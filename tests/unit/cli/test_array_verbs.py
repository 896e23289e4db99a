"""Arrays as one thing at the command line."""

from __future__ import annotations

import json

import pytest

from .conftest import task

ARRAY = {"array_id": "task-7", "element_id": "task-7_0", "array_index": 0, "array_count": 4}
FAILURES = [
    {"task_id": "task-8", "index": 1, "status": "failed", "exit_code": 3, "reason": "exit_code"},
    {"task_id": "task-9", "index": 2, "status": "failed", "exit_code": None, "reason": "timeout"},
]


def array(**numbers):
    return task(7, "success", name="sweep", array={"count": 4, **numbers}, **ARRAY)


def test_wait_returns_the_first_code_that_is_not_0_although_the_first_task_succeeded(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-7"] = [
        (200, array(running=2, success=1, failed=1)),
        (200, array(success=2, failed=2, failures=FAILURES)),
    ]
    code, out, _ = dgpu("wait", "7", "--server", server.url)
    assert code == 3
    assert "2/4 done, 2 failed; failed: 7_1, 7_2" in out
    assert "[0]" not in out
    document = json.loads(dgpu("wait", "7", "-o", "json", "--server", server.url)[1])
    assert (document["tasks"][0]["code"], document["tasks"][0]["array"]["failed"]) == (3, 2)


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        (FAILURES[1:], 124),
        ([{**FAILURES[0], "status": "cancelled", "exit_code": None, "reason": "cancelled"}], 130),
        ([], 0),
    ],
)
def test_the_way_an_element_ended_decides_the_code(dgpu, server, failures, code):
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=3, failures=failures))
    assert dgpu("wait", "7", "--server", server.url)[0] == code


def test_an_element_is_sent_as_it_was_named(dgpu, server):
    server.answers["POST", "/api/v1/tasks/cancel"] = (200, {"cancelled": 1})
    server.answers["GET", "/api/v1/tasks/task-7_3"] = (200, task(10, "cancelled"))
    assert dgpu("cancel", "7_3", "--server", server.url)[:2] == (0, "task-7_3\n")
    assert server.sent("POST", "/api/v1/tasks/cancel") == [{"task_ids": ["task-7_3"]}]
    for wrong in ("7_", "7_x", "_3", "7_3_1"):
        code, _, err = dgpu("cancel", wrong, "--server", server.url)
        assert code == 2
        assert "7_3 for index 3 of array 7" in err


def test_a_cancelled_array_is_told_with_its_number_of_tasks(dgpu, server):
    server.answers["POST", "/api/v1/tasks/cancel"] = (200, {"cancelled": 3})
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=1, cancelled=3))
    code, out, err = dgpu("cancel", "7", "--server", server.url)
    assert (code, out, err) == (0, "task-7\n", "3 tasks cancelled.\n")


def test_failed_tasks_are_retried(dgpu, server):
    answer = {"task_id": "task-20", "status": "pending", "created_at": "", "retry_of": "task-7", "count": 2}
    server.answers["POST", "/api/v1/tasks/task-7/retry"] = (201, answer)
    code, out, err = dgpu("retry", "7", "--failed", "--server", server.url)
    assert (code, out) == (0, "task-20\n")
    assert "2 tasks" in err
    assert server.sent("POST", "/api/v1/tasks/task-7/retry") == [{"failed": True}]
