"""What each verb sends, and what it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from .conftest import SUBMITTED, problem, task


@pytest.fixture
def run_here(server, tmp_path):
    """`dgpu run` as a process of its own, with this as its standard input; returns what it says on stderr."""
    server.answers["POST", "/api/v1/tasks"] = SUBMITTED
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, task(7, "success", attempt=1, exit_code=0))
    server.answers["GET", "/api/v1/tasks/task-7/logs"] = (200, b"")

    def call(**stdin):
        command = [sys.executable, "-m", "dgpu", "--server", server.url, "run", "--", "cat"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **stdin)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return done.stderr

    return call


def test_run_says_that_what_was_piped_into_it_is_not_sent(run_here):
    assert "The pipe on standard input is not sent" in run_here(input="hello\n")


def test_run_says_that_a_file_on_its_input_is_not_sent_unless_it_has_been_read_already(run_here, tmp_path):
    words = tmp_path / "words"
    words.write_text("one\ntwo\n")
    with words.open("rb", buffering=0) as file:
        assert "The file on standard input is not sent" in run_here(stdin=file)
        assert file.read() == b"one\ntwo\n"  # left for a loop of the shell
        assert run_here(stdin=file) == ""


def test_run_with_nothing_to_read_says_nothing_about_it(run_here):
    assert run_here(stdin=subprocess.DEVNULL) == ""
    assert run_here(input="") == ""


def listed(server, tasks):
    server.answers["GET", "/api/v1/tasks"] = (200, {"tasks": tasks, "total": len(tasks), "next_cursor": None})


def test_ps_shows_where_a_task_runs_or_why_it_waits(dgpu, server):
    running = task(1, "running", name="a", node="box", started_at="2026-05-04T10:00:01.000Z")
    server.answers["GET", "/api/v1/tasks"] = [
        (200, {"tasks": [running], "total": 1}),
        (200, {"tasks": [task(2, name="b", waiting="box: 4 of 4 GPUs are busy")], "total": 1}),
    ]
    _, out, _ = dgpu("ps", "--server", server.url)
    header, first, second = out.splitlines()
    assert header.split()[:3] == ["ID", "NAME", "STATUS"]
    assert first.startswith("task-1")
    assert first.endswith("box")
    assert second.endswith("box: 4 of 4 GPUs are busy")


def test_ps_as_json_yaml_and_names(dgpu, server):
    listed(server, [task(1, "failed", name="x", error="exit code 3")])
    as_json = json.loads(dgpu("ps", "-a", "--json", "--server", server.url)[1])
    assert as_json["total"] == 1
    assert as_json["tasks"][0]["created_at"] == "2026-05-04T10:00:00.000Z"
    assert yaml.safe_load(dgpu("ps", "-a", "-o", "yaml", "--server", server.url)[1]) == as_json
    assert dgpu("ps", "-a", "-o", "name", "--server", server.url)[1] == "task-1\n"


def test_an_empty_list_prints_nothing_on_stdout(dgpu, server):
    listed(server, [])
    code, out, err = dgpu("ps", "--server", server.url)
    assert (code, out) == (0, "")
    assert "ps -a" in err


def test_a_name_cannot_draw_on_the_terminal(dgpu, server):
    listed(server, [task(1, name="evil\x1b[2J")])
    _, out, _ = dgpu("ps", "-a", "--server", server.url)
    assert "\x1b" not in out


def test_a_task_on_a_node_that_is_away_is_not_said_to_run(dgpu, server):
    away = task(
        4, "running", node="box", started_at="2026-05-04T10:00:01.000Z", waiting="node box unreachable"
    )
    server.answers["GET", "/api/v1/tasks/task-4"] = (200, away)
    server.answers["GET", "/api/v1/tasks/task-4/why"] = (
        200,
        {
            "task_id": "task-4",
            "status": "running",
            "position": None,
            "blockers": [{"code": "node_unreachable", "detail": "node box is unreachable"}],
        },
    )
    _, out, _ = dgpu("why", "4", "--server", server.url)
    assert "its current state is unknown" in out
    assert out.endswith("  - node box is unreachable\n")


def test_why_is_a_page_with_every_blocker_and_what_would_help(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, gpu_count=2))
    server.answers["GET", "/api/v1/tasks/task-3/why"] = (
        200,
        {
            "task_id": "task-3",
            "status": "pending",
            "position": 2,
            "ahead": ["task-2"],
            "blockers": [{"code": "gpus_busy", "detail": "needs 2 GPUs of one node, 1 is free"}],
            "expected_start": None,
            "sooner": [{"change": "gpus", "detail": "1 GPU instead of 2"}],
        },
    )
    _, out, _ = dgpu("why", "3", "--server", server.url)
    for part in ("Position in the queue: 2, behind task-2", "needs 2 GPUs", "unknown", "1 GPU instead of 2"):
        assert part in out


def test_show_hides_what_is_empty_and_tells_the_rest(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-3"] = (
        200,
        task(3, "failed", command=["python", "a b.py"], exit_code=3, error="exit code 3", env=["PATH", "A"]),
    )
    _, out, _ = dgpu("show", "3", "--server", server.url)
    assert "python 'a b.py'" in out
    assert "A, PATH" in out
    assert "labels" not in out


@pytest.mark.parametrize(
    ("facts", "flags", "told"),
    [
        ({"status": "pending", "waiting": "needs 1 GPU"}, (), "task-3 has written nothing: needs 1 GPU"),
        ({"status": "cancelled"}, (), "task-3 has written nothing: it has ended (cancelled)"),
        ({"status": "running", "attempt": 2}, (), "task-3 has written nothing yet: it is running"),
        (
            {"status": "running", "attempt": 2},
            ("--attempt", "1"),
            "Attempt 1 of task-3 has written nothing.",
        ),
        ({"status": "success", "attempt": 1}, (), "task-3 has written nothing: it has ended (success)"),
    ],
)
def test_logs_say_that_nothing_was_written(dgpu, server, facts, flags, told):
    server.answers["GET", "/api/v1/tasks/task-3/logs"] = (200, b"")
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, **facts))
    code, out, err = dgpu("--server", server.url, "logs", "3", *flags)
    assert (code, out) == (0, "")
    assert told in err


def test_logs_that_are_gone_are_not_taken_for_nothing_written(dgpu, server):
    detail = "The output is not available: output from before 2026-05-01T00:00:00.000Z is no longer kept."
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, "success", attempt=1))
    server.answers["GET", "/api/v1/tasks/task-3/logs"] = (404, problem(404, "output_unavailable", detail))
    for flags in ((), ("-f",)):
        code, out, err = dgpu("--server", server.url, "logs", "3", *flags)
        assert (code, out) == (5, "")
        assert detail in err
        assert "written nothing" not in err


def test_logs_are_passed_on_byte_by_byte(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, "running"))
    server.answers["GET", "/api/v1/tasks/task-3/logs"] = (200, b"a\x00\xc3\xa9\n")
    assert dgpu("logs", "3", "--server", server.url)[1] == "a\x00é\n"


def test_logs_are_a_document_for_programs(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, "running", attempt=2))
    server.answers["GET", "/api/v1/tasks/task-3/logs"] = (200, b"one\n\xfftwo\n")
    code, out, _ = dgpu("logs", "3", "--json", "--server", server.url)
    wanted = {
        "task_id": "task-3",
        "attempt": 2,
        "status": "running",
        "output": "one\n\ufffdtwo\n",
        "error": "",
    }
    assert (code, json.loads(out)) == (0, wanted)
    assert dgpu("logs", "3", "-o", "name", "--server", server.url)[1] == "task-3\n"
    assert dgpu("logs", "3", "-f", "--json", "--server", server.url)[0] == 2


def test_cancel_all_sends_the_filters(dgpu, server):
    server.answers["POST", "/api/v1/tasks/cancel"] = (200, {"cancelled": 5})
    _, out, err = dgpu("cancel", "--all", "-A", "team", "-s", "pending", "--server", server.url)
    assert server.sent("POST", "/api/v1/tasks/cancel") == [{"tenant": "team", "status": "pending"}]
    assert (out, err) == ("", "5 tasks cancelled.\n")


def test_show_names_gpus_and_priority_for_people(dgpu, server):
    """UUIDs are long and say nothing; they are there on request."""
    gpus = {"allocated_gpus": ["GPU-a", "GPU-b"], "allocated_gpu_names": ["n1:0", "n1:3"]}
    named = {"priority": "high", "priority_value": 80}
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3, "running", **gpus, **named))
    lines = [line.split(maxsplit=1) for line in dgpu("show", "3", "--server", server.url)[1].splitlines()]
    assert ["gpus", "n1:0, n1:3"] in lines
    assert ["priority", "high (80)"] in lines
    assert "GPU-a" not in str(lines)
    _, wide, _ = dgpu("show", "3", "-o", "wide", "--server", server.url)
    assert "n1:0, n1:3" in wide
    assert "GPU-b" in wide


def test_a_token_is_sent_and_never_shown(dgpu, server):
    server.answers["GET", "/api/v1/nodes"] = (
        403,
        {"title": "x", "status": 403, "detail": "No.", "code": "x"},
    )
    code, out, err = dgpu("nodes", "--token", "s3cret", "--server", server.url)
    assert code == 4
    assert "s3cret" not in out + err


def test_node_orders_print_the_node_they_changed(dgpu, server):
    node = {
        "id": "box",
        "status": "draining",
        "gpus": 4,
        "gpus_free": 0,
        "draining": True,
        "tasks": ["task-1"],
    }
    server.answers["POST", "/api/v1/nodes/box/drain"] = (200, node)
    _, out, err = dgpu("nodes", "drain", "box", "--reason", "new fan", "--server", server.url)
    assert server.sent("POST", "/api/v1/nodes/box/drain") == [{"reason": "new fan"}]
    assert "draining" in out
    assert "task-1" in err


def test_giving_up_a_node_asks_first(dgpu, server):
    """Said too early, its tasks may run twice."""
    code, _, err = dgpu("nodes", "lost", "box", "--server", server.url)
    assert code == 2
    assert "--yes" in err
    assert server.requests == []


def test_help_and_version_import_nothing_heavy():
    program = (
        "import sys; from dgpu.cli.main import run; run(sys.argv[1:]);"
        "print([name for name in ('httpx', 'rich', 'pydantic', 'litestar', 'grpc', 'yaml', 'msgspec', 'asyncio', "
        "'ssl') if name in sys.modules], file=sys.stderr)"
    )
    for arguments in (["version"], ["--help"], ["submit", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr.strip().splitlines()[-1] == "[]", arguments


@pytest.mark.parametrize("arguments", [["ps"], ["submit", "true"]])
def test_short_verbs_import_nothing_heavy_when_piped(server, arguments):
    listed(server, [task(1)])
    server.answers["POST", "/api/v1/tasks"] = (201, task(1))
    server.answers["GET", "/api/v1/tasks/task-1"] = (200, task(1))
    program = (
        "import sys; from dgpu.cli.main import run; run(sys.argv[1:]);"
        "print([name for name in ('httpx', 'rich', 'textual', 'pydantic', 'litestar', 'grpc', 'yaml', 'asyncio') "
        "if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--server", server.url, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "task-1" in done.stdout


def test_completion_offers_verbs_and_flags():
    def offers(words):
        env = {
            **os.environ,
            "_DGPU_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dgpu"], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.split()

    assert offers("dgpu su") == ["submit"]
    assert "--gpu-type" in offers("dgpu submit --g")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(dgpu, shell):
    code, out, _ = dgpu("completion", shell)
    assert code == 0
    assert "_DGPU_COMPLETE" in out


def test_a_gpu_is_recovered_by_its_place_or_the_beginning_of_its_uuid(dgpu, server):
    card = {
        "id": "GPU-7a",
        "uuid": "GPU-7a",
        "node": "box",
        "index": 1,
        "model": "V100",
        "memory_total_mb": 32768,
        "status": "error",
        "health": {
            "state": "out",
            "since": "2026-01-01T00:00:00.000Z",
            "evidence": "Xid 79",
            "remark": "4 times",
        },
    }
    other = {**card, "id": "GPU-7b", "uuid": "GPU-7b", "index": 2}
    listed = {"total": 2, "idle": 0, "busy": 0, "offline": 0, "error": 2, "gpus": [card, other]}
    server.answers["GET", "/api/v1/gpus"] = (200, listed)
    server.answers["POST", "/api/v1/gpus/GPU-7a/recover"] = (200, {**card, "health": {"state": "probing"}})
    code, out, _ = dgpu("gpus", "--server", server.url)
    assert code == 0
    assert "Xid 79" in out
    assert "dgpu gpus recover box:1" in out
    for name in ("box:1", "gpu-7A"):
        code, out, _ = dgpu("gpus", "recover", name, "--reason", "reseated", "--server", server.url, "--json")
        assert code == 0
        assert '"probing"' in out
    assert server.sent("POST", "/api/v1/gpus/GPU-7a/recover") == [{"reason": "reseated"}] * 2
    assert dgpu("gpus", "recover", "GPU-7", "--server", server.url)[0] == 2
    assert dgpu("gpus", "recover", "box:9", "--server", server.url)[0] == 5


def test_hold_release_and_priority_say_what_is_meant(dgpu, server):
    for verb in ("hold", "release", "priority"):
        server.answers["POST", f"/api/v1/tasks/task-7/{verb}"] = (200, task(7, waiting="it is held"))
    assert dgpu("hold", "7", "--server", server.url)[:2] == (0, "task-7\n")
    assert dgpu("release", "7", "--array", "--server", server.url)[0] == 0
    assert dgpu("priority", "7", "high", "--server", server.url)[0] == 0
    assert server.sent("POST", "/api/v1/tasks/task-7/hold") == [{}]
    assert server.sent("POST", "/api/v1/tasks/task-7/release") == [{"array": True}]
    assert server.sent("POST", "/api/v1/tasks/task-7/priority") == [{"priority": "high"}]


def test_an_array_prints_its_id_and_can_be_cancelled_as_one(dgpu, server):
    server.answers["POST", "/api/v1/tasks"] = (201, {**SUBMITTED[1], "count": 3})
    server.answers["POST", "/api/v1/tasks/cancel"] = (200, {"cancelled": 3})
    code, out, err = dgpu("submit", "--array", "0-2", "--server", server.url, "--", "true")
    assert (code, out) == (0, "task-7\n")
    assert "An array of 3 tasks" in err
    assert dgpu("cancel", "--array", "7", "--server", server.url)[0] == 0
    assert server.sent("POST", "/api/v1/tasks/cancel") == [{"array": "task-7"}]
    assert dgpu("cancel", "7", "--array", "7", "--server", server.url)[0] == 2
    assert dgpu("submit", "--array", "0-2", "--count", "2", "--server", server.url, "--", "true")[0] == 2


def test_ps_shows_the_index_of_an_array_and_all_nodes_of_a_gang(dgpu, server):
    row = {"array_id": "task-1", "element_id": "task-1_4", "array_index": 4, "nodes": 2}
    row["allocated_nodes"] = ["n1", "n2"]
    gang = task(5, "running", name="train", started_at="2026-05-04T10:00:01.000Z", **row)
    server.answers["GET", "/api/v1/tasks"] = [
        (200, {"tasks": [gang], "total": 1}),
        (200, {"tasks": [], "total": 0}),
    ]
    _, out, _ = dgpu("ps", "--server", server.url)
    line = out.splitlines()[1]
    assert line.startswith("task-1_4  train")
    assert "2x1" in line
    assert line.endswith("n1, n2")


def test_gpus_of_a_node_that_does_not_exist_are_an_error_and_of_one_without_cards_are_none(dgpu, server):
    none = {"total": 0, "idle": 0, "busy": 0, "offline": 0, "error": 0, "gpus": []}
    server.answers["GET", "/api/v1/gpus"] = (200, none)
    bare = {"id": "bare", "status": "ready", "gpus": 0, "gpus_free": 0}
    server.answers["GET", "/api/v1/nodes"] = (200, {"total": 1, "nodes": [bare]})
    code, out, err = dgpu("gpus", "--node", "nope", "--server", server.url)
    assert (code, out) == (5, "")
    assert "There is no node 'nope'" in err
    assert dgpu("gpus", "--node", "bare", "--server", server.url)[0] == 0
