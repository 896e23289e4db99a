"""What `dgpu submit` sends, and what it says."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from dgpu.client.surroundings import sent_variables

from .conftest import SUBMITTED, task

WHO = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def submit(dgpu, server, monkeypatch, tmp_path):
    """Submits with these flags and returns the body that was sent."""
    monkeypatch.chdir(tmp_path)
    for name in sent_variables(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/somewhere/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7, waiting="4 of 4 GPUs are busy"))

    def call(*arguments):
        code, out, err = dgpu("--server", server.url, "submit", *arguments)
        assert code == 0, err
        assert out == "task-7\n"
        return server.sent("POST", "/api/v1/tasks")[-1]

    return call


def test_a_bare_submit_sends_where_and_with_what_the_shell_would_run_it(submit, tmp_path):
    assert submit("--", "python", "train.py") == {
        "command": ["python", "train.py"],
        "workdir": str(tmp_path),
        "env": {"PATH": "/somewhere/bin"},
        "labels": {"user": WHO},
    }


def test_who_submits_can_be_said_for_somebody_else(submit):
    assert submit("--label", "user=ann", "--", "true")["labels"] == {"user": "ann"}


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        (["no-such-project", "--", "python"], "no-such-project"),
        (["--", "python"], "."),
        (["-G", "1", "--", "python"], "."),
        (["--hold", "--", "python"], "."),
        (["python"], "."),
    ],
)
def test_a_word_between_upload_and_the_command_is_its_directory(dgpu, words, directory):
    """A mistyped directory is refused later: it must not become the command, with an upload of this directory."""
    code, out, err = dgpu("submit", "--print", "--json", "--upload", *words)
    assert code == 0, err
    assert (json.loads(out)["upload"], json.loads(out)["command"]) == (directory, ["python"])


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["serve.py", "--port", "$DGPU_PORT"], True),
        (["serve.py", "--port=${DGPU_PORT}"], True),
        (["serve.py --port $DGPU_PORT"], False),
        (["sh", "-c", "serve.py --port $DGPU_PORT"], False),
        (["/bin/sh", "-c", "echo>$DGPU_TASK_ID"], False),
        (["serve.py", "$HOME"], False),
    ],
)
def test_a_variable_that_no_shell_fills_in_is_told(dgpu, words, is_told):
    """The quotes protect it from the user's shell, and the program would get it as text."""
    code, _, err = dgpu("submit", "--print", "--json", "--", *words)
    assert (code, "is sent as it is: several words run without a shell" in err) == (0, is_told)


def test_a_clean_environment_sends_neither(submit):
    assert submit("--clean-env", "--", "true") == {"command": ["true"]}


def test_variables_come_from_the_flag_before_the_file_before_the_shell(submit, tmp_path, monkeypatch):
    (tmp_path / "vars").write_text("# mine\n\nexport A=file\nB='two words'\nPATH=/file\n")
    monkeypatch.setenv("OTHER", "shell")
    assert submit("--env-file", "vars", "-e", "A=flag", "--", "true")["env"] == {
        "A": "flag", "B": "two words", "PATH": "/file"
    }  # fmt: skip
    assert submit("--env-all", "--env-file", "vars", "--", "true")["env"]["OTHER"] == "shell"
    assert submit("--clean-env", "--env-file", "vars", "--", "true")["env"]["B"] == "two words"


def test_a_file_of_variables_with_an_error_is_named_with_its_line(dgpu, server, tmp_path):
    (tmp_path / "vars").write_text("A=1\nSECRET\n")
    code, _, err = dgpu("--server", server.url, "submit", "--env-file", str(tmp_path / "vars"), "--", "true")
    assert code == 2
    assert "line 2" in err
    assert "K=V" in err
    code, _, err = dgpu("--server", server.url, "submit", "--env-file", str(tmp_path / "none"), "--", "true")
    assert code == 2
    assert "cannot be read" in err


def test_every_flag_reaches_the_server_under_its_name(submit, tmp_path):
    body = submit(
        "-G", "2", "--gpu-type", "A100", "--gpu-type", "H100", "--mem", "8G", "--shared", "-t", "15m",
        "-J", "night", "-A", "team", "-p", "high", "--pool", "online", "--model", "mace", "--nodes", "3",
        "--array", "0-9%3", "--grid", "lr=0.1,0.01", "--grid", "seed=0-4",
        "--after", "4", "--after", "task-5", "--retries", "1", "--restart", "on-failure",
        "-e", "A=1", "--label", "k=v", "-w", "sub", "--cpus", "1.5", "--ram", "16G", "train.sh", "-G", "9",
    )  # fmt: skip
    assert body == {
        "command": ["train.sh", "-G", "9"],
        "gpu_count": 2,
        "gpu_model": ["A100", "H100"],
        "gpu_memory_mb": 8_192,
        "shared": True,
        "timeout_seconds": 900,
        "name": "night",
        "tenant_id": "team",
        "priority": "high",
        "pool": "online",
        "model_name": "mace",
        "nodes": 3,
        "array": "0-9%3",
        "grid": {"lr": "0.1,0.01", "seed": "0-4"},
        "after": ["task-4", "task-5"],
        "max_retries": 1,
        "restart": "on-failure",
        "env": {"PATH": "/somewhere/bin", "A": "1"},
        "labels": {"user": WHO, "k": "v"},
        "workdir": str(tmp_path / "sub"),
        "cpus": 1.5,
        "ram_mb": 16_384,
    }


def test_zero_gpus_and_zero_retries_are_said_and_not_left_out(submit):
    body = submit("-G", "0", "--retries", "0", "--", "true")
    assert (body["gpu_count"], body["max_retries"]) == (0, 0)


@pytest.mark.parametrize(("flags", "told"), [([], True), (["-t", "1:00:00"], False)])
def test_a_time_limit_by_default_is_reported(dgpu, server, flags, told):
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7, timeout_seconds=3600))
    _, _, err = dgpu("--server", server.url, "submit", *flags, "--", "true")
    assert ("Time limit: 1h, the default. To change it: -t 2h" in err) is told


def test_a_single_text_goes_to_the_shell(submit):
    assert submit("--clean-env", "echo $HOME | wc")["command"] == "echo $HOME | wc"


def test_the_verdict_is_a_note_so_that_the_id_can_be_kept_in_a_variable(dgpu, server):
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7, waiting="4 of 4 GPUs are busy"))
    _, out, err = dgpu("--server", server.url, "submit", "--", "true")
    assert out == "task-7\n"
    assert "4 of 4 GPUs are busy" in err


def test_many_equal_tasks_are_one_request(dgpu, server):
    server.answers["POST", "/api/v1/tasks/batch"] = (201, {"task_ids": ["task-1", "task-2"]})
    _, out, _ = dgpu("--server", server.url, "submit", "--clean-env", "--count", "2", "--", "true")
    assert out == "task-1\ntask-2\n"
    assert server.sent("POST", "/api/v1/tasks/batch") == [{"task": {"command": ["true"]}, "count": 2}]


def test_output_is_a_file_of_the_task_and_o_the_format(submit, dgpu, server):
    sent = submit("--output", "%x-%j.out", "--error", "e.txt", "-o", "name", "--", "true")
    assert (sent["output_file"], sent["error_file"]) == ("%x-%j.out", "e.txt")
    before = len(server.sent("POST", "/api/v1/tasks"))
    code, _, err = dgpu("--server", server.url, "submit", "--output", "json", "--", "true")
    assert code == 2
    assert "'json' is a format: write -o json. For a file of this name: --output ./json" in err
    assert len(server.sent("POST", "/api/v1/tasks")) == before
    assert submit("--output", "./json", "--", "true")["output_file"] == "./json"
