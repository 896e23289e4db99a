"""Output for programs and shells: one JSON shape for one and many, errors as JSON, values for completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from .conftest import problem, task

TASKS = "/api/v1/tasks"


@pytest.fixture
def call(dgpu, server):
    return lambda *arguments: dgpu(*arguments, "--server", server.url)


@pytest.fixture
def offers(server):
    """The completions of the last word, with a scheduler."""

    def of(*words, url=server.url):
        env = {
            **os.environ,
            "_DGPU_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("dgpu", *words)),
            "COMP_CWORD": str(len(words)),
            "DGPU_SERVER": url,
        }
        done = subprocess.run(
            [sys.executable, "-m", "dgpu"], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stderr == ""
        return done.stdout.split()

    return of


def test_one_id_and_several_give_the_same_shape(call, server):
    for number in (1, 2):
        server.answers["GET", f"{TASKS}/task-{number}"] = (200, task(number))
    one = json.loads(call("show", "1", "-o", "json")[1])
    first, second = map(json.loads, call("show", "1", "2", "-o", "json")[1].splitlines())
    assert one == first
    assert (first["task_id"], second["task_id"]) == ("task-1", "task-2")
    documents = list(yaml.safe_load_all(call("show", "1", "2", "-o", "yaml")[1]))
    assert [each["task_id"] for each in documents] == ["task-1", "task-2"]


def test_an_error_is_json_on_stderr_and_leaves_stdout_empty(call, server):
    server.answers["GET", f"{TASKS}/task-9"] = (404, problem(404, "unknown_task", "There is no task-9."))
    code, out, err = call("show", "9", "-o", "json")
    assert (code, out) == (5, "")
    assert json.loads(err) == {
        "error": {
            "message": "There is no task-9.",
            "exit_code": 5,
            "code": "unknown_task",
            "status": 404,
            "errors": [],
        }
    }


def test_a_wrong_field_is_named_in_the_json(dgpu, server):
    refusal = problem(422, "invalid", "1 field is wrong.") | {
        "errors": [{"path": "gpu_count", "detail": "-1 is not 0 or more"}]
    }
    server.answers["POST", TASKS] = (422, refusal)
    code, _, err = dgpu("--server", server.url, "submit", "-o", "json", "--", "true")
    assert code == 6
    assert json.loads(err)["error"]["errors"] == [{"path": "gpu_count", "detail": "-1 is not 0 or more"}]


def test_a_usage_error_is_json_too(call):
    code, out, err = call("ps", "-o", "json", "--status")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["exit_code"] == 2


def test_completion_offers_tasks_by_both_forms_of_their_id(offers, server):
    tasks = [task(12, "running", name="train"), task(3)]
    server.answers["GET", TASKS] = (200, {"tasks": tasks, "total": 2, "next_cursor": None})
    assert offers("show", "1") == ["12"]
    assert offers("cancel", "task-") == ["task-12", "task-3"]
    assert offers("submit", "--after", "task-3") == ["task-3"]


def test_completion_offers_nodes_tenants_and_fixed_words(offers, server):
    node = {"id": "n1", "status": "ready", "gpus": 1, "gpus_free": 1}
    server.answers["GET", "/api/v1/nodes"] = (200, {"total": 1, "nodes": [node]})
    tenants = [{"id": name, "use": {"tenant_id": name, "gpus_used": 0}} for name in ("team-a", "other")]
    server.answers["GET", "/api/v1/tenants"] = (200, {"total": 2, "tenants": tenants})
    assert offers("nodes", "drain", "n") == ["n1"]
    assert offers("ps", "--tenant", "t") == ["team-a"]
    assert offers("submit", "--pool", "o") == ["online"]
    assert offers("submit", "--priority", "h") == ["high"]
    assert offers("ps", "--status", "p") == ["pending"]


def test_completion_without_a_scheduler_offers_nothing_and_says_nothing(offers):
    assert offers("show", "1", url="http://127.0.0.1:9") == []
