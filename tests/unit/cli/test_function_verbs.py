"""call, result and workers at the command line."""

from __future__ import annotations

import base64
import importlib

import msgspec
import pytest

from dgpu.functions.code import described
from dgpu.functions.session import Session
from dgpu.functions.versions import this_python
from dgpu.wire.call_specs import Apps
from dgpu.wire.requests import decode_task

from .conftest import SUBMITTED, problem, task

ENDED = {"task_id": "task-7", "status": "success", "result": {"a": [1, None]}, "encoding": "json"}
WORKER = {
    "task_id": "task-3",
    "app": "a1b2",
    "tenant_id": "lab",
    "node": "n1",
    "gpus": [0],
    "status": "warm",
    "idle_since": "2026-05-04T10:00:00.000Z",
    "models": [
        {"name": "deepseek-7b", "memory_mb": 16_384},
        {"name": "tiny", "loading": True},
    ],
    "running": None,
    "queued": 2,
}


def test_call_sends_the_function_its_arguments_and_where_its_code_is(
    dgpu, server, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    code, out, err = dgpu(
        *(
            "--server",
            server.url,
            "call",
            "my-job:run",
            "3",
            "x",
            "-k",
            "lr=0.1",
            "-G",
            "2",
            "--model",
            "tiny",
        )
    )
    assert (code, out) == (0, "task-7\n")
    assert "dgpu result --wait 7" in err
    [sent] = server.sent("POST", "/api/v1/tasks")
    assert (sent["entrypoint"], sent["args"], sent["kwargs"]) == ("my-job:run", ["3", "x"], {"lr": "0.1"})
    assert (sent["gpu_count"], sent["model_name"]) == (2, "tiny")
    assert (sent["python"], sent["python_path"], sent["workdir"]) == (
        this_python(),
        [str(tmp_path)],
        str(tmp_path),
    )
    assert "command" not in sent


def test_call_and_the_sdk_have_the_same_workers(dgpu, server, monkeypatch, tmp_path) -> None:
    (tmp_path / "shared_job.py").write_text(
        "import dgpu\n\n@dgpu.task(timeout=9)\ndef run(x):\n    return x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    assert dgpu("--server", server.url, "call", "shared_job:run", "3")[0] == 0
    [by_call] = server.sent("POST", "/api/v1/tasks")
    by_sdk = described(Session(server.url), importlib.import_module("shared_job").run)
    assert by_call["labels"] == by_sdk["labels"]
    assert app_of(by_call) == app_of({**by_sdk, "args": [3]})
    changed = {**by_sdk, "env": {**by_sdk["env"], "DGPU_CODE_VERSION": "other"}}
    assert app_of(changed) != app_of(by_call)


def app_of(task: dict) -> str:
    return decode_task(msgspec.json.encode(task), apps=Apps()).shape.app


def test_call_takes_json_and_waits_for_the_result(dgpu, server) -> None:
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7/result"] = [
        (202, {"task_id": "task-7", "status": "running"}),
        (200, ENDED),
    ]
    code, out, _ = dgpu("--server", server.url, "call", "m:f", "[1]", "--json-args", "-k", "b=true", "--wait")
    assert (code, out) == (0, '{"a": [1, null]}\n')
    [sent] = server.sent("POST", "/api/v1/tasks")
    assert (sent["args"], sent["kwargs"]) == ([[1]], {"b": True})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("m:f", "[1", "--json-args"), "'[1' is not JSON"),
        (("m:f", "-k", "b"), "'b' is not NAME=VALUE"),
    ],
)
def test_call_refuses_what_it_cannot_read(dgpu, server, arguments, words) -> None:
    code, _, err = dgpu("--server", server.url, "call", *arguments)
    assert code == 2
    assert words in err
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "code", "out", "err"),
    [
        (ENDED, 0, '{"a": [1, null]}\n', ""),
        (
            {
                **ENDED,
                "result": base64.b64encode(msgspec.msgpack.encode(b"\0raw")).decode(),
                "encoding": "msgpack",
            },
            0,
            "\0raw",
            "",
        ),
        (
            {
                "task_id": "task-7",
                "status": "failed",
                "error": "ValueError: x",
                "traceback": "Traceback\nValueError: x",
            },
            1,
            "",
            "Traceback\nValueError: x\n",
        ),
        (
            {"task_id": "task-7", "status": "failed", "reason": "timeout", "error": "its time was up"},
            124,
            "",
            "dgpu: task-7 failed: its time was up\n",
        ),
        ({"task_id": "task-7", "status": "cancelled", "reason": "cancelled"}, 130, "", "task-7 cancelled"),
        ({"task_id": "task-7", "status": "running"}, 7, "", "task-7 has not ended: running"),
    ],
)
def test_result_prints_the_value_or_says_how_the_call_ended(dgpu, server, answer, code, out, err) -> None:
    server.answers["GET", "/api/v1/tasks/task-7/result"] = (200, answer)
    found = dgpu("--server", server.url, "result", "7")
    assert found[:2] == (code, out)
    assert err in found[2]


def test_a_large_result_is_fetched(dgpu, server) -> None:
    server.answers["GET", "/api/v1/tasks/task-7/result"] = (200, {**ENDED, "result": None, "ref": "a" * 64})
    server.answers["GET", "/api/v1/tasks/task-7/result/content"] = (200, msgspec.msgpack.encode("long"))
    assert dgpu("--server", server.url, "result", "7")[:2] == (0, '"long"\n')


def test_an_expired_result_is_told(dgpu, server) -> None:
    gone = problem(410, "result_expired", "The result of task-7 is not kept any more.")
    server.answers["GET", "/api/v1/tasks/task-7/result"] = (410, gone)
    code, _, err = dgpu("--server", server.url, "result", "7")
    assert code != 0
    assert "not kept any more" in err


def test_workers_show_their_models_and_how_long_they_idle(dgpu, server) -> None:
    server.answers["GET", "/api/v1/workers"] = (200, {"workers": [WORKER]})
    code, out, _ = dgpu("--server", server.url, "workers", "-A", "lab")
    titles, row = out.splitlines()
    assert code == 0
    assert titles.split() == ["ID", "STATUS", "IDLE", "NODE", "GPUS", "MODELS", "RUNS", "QUEUED"]
    assert "deepseek-7b, tiny (loading)" in row
    assert server.queries["/api/v1/workers"] == {"tenant": "lab"}
    assert "16G" in dgpu("--server", server.url, "workers", "-o", "wide")[1]
    server.answers["GET", "/api/v1/workers"] = (200, {"workers": []})
    assert "No workers." in dgpu("--server", server.url, "workers")[2]


def test_ps_shows_how_far_a_function_is() -> None:
    from dgpu.cli.ps import far_of

    assert far_of({"progress": {"fraction": 0.4, "text": "epoch 2"}}) == ", 40 % epoch 2"
    assert far_of({"progress": {"fraction": 1, "text": ""}}) == ", 100 %"
    assert far_of(task(1)) == ""


def test_serve_asks_for_the_function_of_a_module(dgpu, server, monkeypatch, tmp_path) -> None:
    """It would replace the service of this name by a program that does not exist."""
    (tmp_path / "app.py").touch()
    monkeypatch.chdir(tmp_path)
    code, _, err = dgpu("--server", server.url, "serve", "app")
    assert (code, "'app' is a module; name a function of it, too: app:factory" in err) == (2, True)
    assert server.requests == []


def test_an_empty_list_of_services_says_how_to_run_one(dgpu, server) -> None:
    server.answers["GET", "/api/v1/services"] = (200, {"services": [], "total": 0})
    told = "There are no services. To run one: dgpu serve --help\n"
    assert dgpu("--server", server.url, "services") == (0, "", told)
    assert dgpu("--server", server.url, "services", "-o", "name") == (0, "", "")


def test_a_shell_without_a_terminal_names_what_works_without_one(dgpu) -> None:
    """-it is implied and cannot be left out."""
    code, _, err = dgpu("shell")
    assert (code, "is not a terminal. To run a command: dgpu run -- CMD" in err) == (2, True)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("chat.app:factory", "chat"),
        ("./bin/Server", "server"),
        ("vllm serve ./weights --port $DGPU_PORT", "vllm"),
    ],
)
def test_the_name_of_a_service_is_that_of_its_module_or_program(word, name) -> None:
    from dgpu.cli.serve import _name_of

    assert _name_of(word) == name


def test_why_ends_with_one_full_stop() -> None:
    from dgpu.cli.why import page

    failed = task(7, name="run", status="failed", reason="raised", error="no module. Give upload.")
    assert page({"task_id": "task-7", "status": "failed"}, failed)[0].endswith("Give upload.")
    assert not page({"task_id": "task-7", "status": "failed"}, failed)[0].endswith("..")


def test_why_names_the_worker_that_a_call_waits_for() -> None:
    from dgpu.cli.why import page

    call = task(7, name="run", entrypoint="job:run", gpu_count=0, cpus=0, started_at=None, worker="task-3")
    waits = {"task_id": "task-7", "status": "pending", "position": None, "blockers": [], "nearest": None}
    told = page({**waits, "expected_start": None, "looked_ahead": True, "sooner": []}, call)
    assert told[0].endswith("it needs a worker.")
    assert page({**waits, "status": "running"}, call) == [
        "task-7 (run) is next on its worker task-3, after the calls before it."
    ]
    runs = {
        "status": "running",
        "cancelling": False,
        "blockers": [],
        "waiting": "",
        "allocated_nodes": ["n1"],
    }
    started = {**call, **runs, "started_at": "2026-05-04T10:00:00.000Z"}
    far = {"progress": {"fraction": 0.03, "text": "step 6"}}
    assert page({**waits, "status": "running"}, started | far)[0].startswith("task-7 (run) runs on n1 for ")
    assert page({**waits, "status": "running"}, started | far)[0].endswith(", 3 % step 6.")


def test_the_help_leaves_out_flags_that_are_refused(dgpu) -> None:
    for verb in ("call", "serve"):
        told = dgpu(verb, "--help")[1]
        assert "--gpus" in told
        assert not any(flag in told for flag in ("--array", "--grid", "--image", "--restart"))
    assert "--array" in dgpu("submit", "--help")[1]
