"""`dgpu submit -f FILE` and `--print`: what is sent, and which errors are told with their lines."""

from __future__ import annotations

import json

import pytest
import yaml

from .conftest import SUBMITTED, task

JOBS = """\
defaults:
  gpu_count: 0
  timeout_seconds: 2h
  env: {A: 1, B: yes}
tasks:
  - name: report
    command: [python, report.py]
    after: [train:any, 7, {task_id: prepare, when: failed}]
  - name: train
    command: python train.py
    array: 0-1
    after: prepare
    env: {B: 0.10}
    ram_mb: 16G
  - {name: prepare, command: make, timeout_seconds: 60}
"""


@pytest.fixture
def submit(dgpu, server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    server.answers["POST", "/api/v1/tasks/batch"] = (201, {"task_ids": [f"task-{n}" for n in range(7, 3000)]})
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7))

    def call(text, *flags):
        (tmp_path / "jobs.yaml").write_text(text)
        return *dgpu("--server", server.url, "submit", "-f", "jobs.yaml", *flags), server.requests

    return call


def test_tasks_are_sent_at_once_each_after_its_dependencies(submit, server) -> None:
    code, out, err, _ = submit(JOBS, "--clean-env")
    assert (code, out) == (0, "task-7\ntask-8\ntask-10\n"), err
    (body,) = server.sent("POST", "/api/v1/tasks/batch")
    assert body == {
        "tasks": [
            {
                "name": "prepare", "command": "make", "gpu_count": 0, "timeout_seconds": 60,
                "env": {"A": "1", "B": "yes"},
            },
            {
                "name": "train", "command": "python train.py", "gpu_count": 0, "timeout_seconds": 7200, "array": "0-1",
                "env": {"A": "1", "B": "0.10"}, "ram_mb": 16384, "after": [{"entry": 0, "when": "ok"}],
            },
            {
                "name": "report", "command": ["python", "report.py"], "gpu_count": 0, "timeout_seconds": 7200,
                "env": {"A": "1", "B": "yes"},
                "after": [
                    {"entry": 1, "when": "any"}, {"task_id": "7", "when": "ok"}, {"entry": 0, "when": "failed"},
                ],
            },
        ]
    }  # fmt: skip


def test_flags_win_and_the_shell_surrounds(submit, server, tmp_path) -> None:
    submit(
        "command: x\nenv: {A: 1, B: 2}\ngpu_count: 1\nworkdir: sub\n",
        "-G",
        "2",
        "-e",
        "A=9",
        "--label",
        "k=v",
    )
    (body,) = server.sent("POST", "/api/v1/tasks")
    assert (body["gpu_count"], body["env"]["A"], body["env"]["B"]) == (2, "9", "2")
    assert body["env"]["PATH"]
    assert body["workdir"] == str(tmp_path / "sub")
    assert {"user", "k"} == set(body["labels"])


def test_print_shows_what_would_be_sent_and_asks_no_scheduler(submit, dgpu) -> None:
    code, out, err, requests = submit(JOBS, "--print")
    assert (code, requests) == (0, []), err
    assert [each["name"] for each in json.loads(out)["tasks"]] == ["prepare", "train", "report"]
    assert json.loads(submit("command: x", "--print", "-e", "S=hidden")[1])["env"]["S"] == "hidden"
    _, out, _ = dgpu("--token", "T0KEN", "submit", "--count", "2", "--print", "-o", "yaml", "--", "true")
    assert yaml.safe_load(out)["count"] == 2
    assert "T0KEN" not in out


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", {"1:1": "empty"}),
        ("- a\n", {"1:1": "tasks: [...]"}),
        ("tasks:\n - name: a\n  command: x\n", {"3:3": "not YAML"}),
        ("tasks: []\n", {"1:8": "at least one task"}),
        ("tasks: [5]\njobs: 1\n", {"1:9": "got 5", "2:7": "jobs is not known here"}),
        ("command: x\ncommand: y\n", {"2:1": "given twice"}),
        ("a: &a\n  b: *a\n", {"1:4": "contains itself"}),
        ("[" * 3_000, {"1:1": "nested too deeply"}),
        ("command: !!python/object:os.system x\n", {"1:10": "not a plain value"}),
        ("defaults: {ram_mb: 16}\ntasks:\n - command: x\n   ram_mb: 16q\n", {"4:12": "'16q'"}),
        (
            "tasks:\n - comand: x\n   gpu_count: many\n - command: x\n   env: [1]\n",
            {"2:12": "Did you mean command?", "3:15": 'got "many"', "5:9": "names and texts"},
        ),
        ("tasks:\n - command: x\n   after: nope\n", {"3:11": "no task of this file has the name 'nope'"}),
        (
            "tasks:\n - {name: a, command: x}\n - {name: a, command: x}\n - command: x\n   after: [a, b:never]\n",
            {"5:12": "2 tasks of this file have the name a", "5:15": "ok, any, failed"},
        ),
        (
            "tasks:\n - {name: a, command: x, after: b}\n - {name: b, command: x, after: a}\n",
            {"2:33": "in a circle"},
        ),
        ("name: a\ncommand: x\nafter: a\n", {"3:8": "in a circle"}),
        ("command: x\nafter: true\n", {"2:8": "expected a name or id"}),
    ],
)
def test_every_error_is_told_with_its_line_and_nothing_is_sent(submit, text, faults) -> None:
    code, out, err, requests = submit(text)
    assert (code, out, requests) == (2, "", []), err
    for place, words in faults.items():
        (line,) = [line for line in err.splitlines() if f"jobs.yaml:{place}: " in line]
        assert words in line
    assert "Nothing was submitted" in err


def test_a_long_chain_is_sorted_quickly(submit, server) -> None:
    lines = [f" - {{name: t{n}, command: x, after: t{n + 1}}}\n" for n in range(2_000)]
    code, _, err, _ = submit("tasks:\n" + "".join(lines) + " - {name: t2000, command: x}\n")
    assert code == 0, err
    (body,) = server.sent("POST", "/api/v1/tasks/batch")
    assert [each["name"] for each in body["tasks"][:2]] == ["t2000", "t1999"]


@pytest.mark.parametrize("more", [["--", "true"], ["--count", "2"], ["--allocation"]])
def test_a_file_excludes_other_ways_to_say_what_runs(submit, more) -> None:
    assert submit("command: x", *more)[0] == 2


def test_a_missing_file_is_told(dgpu, tmp_path) -> None:
    code, _, err = dgpu("submit", "-f", str(tmp_path / "none"))
    assert code == 2
    assert "cannot be read" in err
