"""Arrays as one thing at the command line."""

from __future__ import annotations

import json
import threading

import pytest

from dgpu.cli.array_output import PrefixedLines

from .conftest import SUBMITTED, problem, task

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
    assert "2 failed, 2/4 done (failed: 7_1, 7_2)" in out
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


NUMBERS = {"pending": 3, "running": 1, "success": 4, "failed": 2, "cancelled": 0}


def folded(number, status, **facts):
    names = {"array_id": f"task-{number}", "element_id": f"task-{number}_1", "array_index": 1}
    return task(number + 1, status, name="sweep", array={"count": 10, **NUMBERS}, **names, **facts)


def lists(server, *answers):
    server.answers["GET", "/api/v1/tasks"] = [
        (200, {"tasks": rows, "total": total}) for rows, total in answers
    ]


def test_ps_shows_an_array_once_with_its_progress(dgpu, server):
    lists(server, ([folded(7, "running")], 1), ([task(30), folded(7, "pending")], 104))
    code, out, err = dgpu("ps", "--server", server.url)
    lines = [line.split()[0] for line in out.splitlines()]
    assert (code, lines) == (0, ["ID", "task-7", "task-30"])
    assert "2 failed, 4/10 done, 1 running, 3 waiting" in out
    assert "… 100 more" in err, "three of the tasks that wait are in the row of the array"


def test_ps_of_an_array_lists_failed_tasks_first(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=1, running=1, failed=1))
    elements = [
        task(number, status, array_id="task-7", element_id=f"task-7_{number - 7}", array_index=number - 7)
        for number, status in ((8, "failed"), (9, "running"), (7, "success"))
    ]
    lists(server, *(([each], 1) for each in elements))
    _, out, _ = dgpu("ps", "7", "--server", server.url)
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["task-7_1", "task-7_2", "task-7_0"]


def test_the_first_task_of_an_array_is_printed_with_an_id_that_means_only_it(dgpu, server):
    """Dgpu cancel $(dgpu ps -s running -o name) must not cancel the tasks that wait."""
    lists(server, ([task(7, "running", **ARRAY)], 1), ([task(7, "running", **ARRAY)], 1))
    assert dgpu("ps", "-s", "running", "-o", "name", "--server", server.url)[1] == "task-7_0\n"


@pytest.mark.parametrize(
    ("code", "facts", "words"),
    [
        ("gpus_busy", {"busy": 4, "free": 0, "needed": 1}, "4/4 GPUs busy"),
        ("gpus_busy", {"busy": 3, "free": 1, "needed": 2}, "3/4 GPUs busy, needs 2"),
        ("pool_quota", {"pool": "batch", "used": 3, "quota": 3}, "quota batch 3/3"),
        ("dependency", {"tasks": "task-46:ok", "number": 1}, "after 46"),
        ("dependency", {"tasks": "task-46:ok, task-47:any", "number": 9}, "after 46 +8"),
        ("array_limit", {"running": 3, "limit": 3}, "array limit 3/3"),
        ("gpus_busy", {"other": 1}, "the whole reason"),
        ("news", {}, "the whole reason"),
    ],
)
def test_a_reason_in_a_list_is_short_and_whole_in_a_wide_one(dgpu, server, code, facts, words):
    row = task(3, waiting="the whole reason", blockers=[{"code": code, **facts}])
    lists(server, ([], 0), ([row], 1), ([], 0), ([row], 1))
    assert dgpu("ps", "--server", server.url)[1].rstrip().endswith(f"  {words}")
    assert dgpu("ps", "-o", "wide", "--server", server.url)[1].rstrip().endswith("the whole reason")


def test_filters_are_sent_and_wrong_ones_refused_before(dgpu, server, monkeypatch):
    asked = []
    monkeypatch.setattr("dgpu.cli.ps.collect", lambda _, filters, __: asked.append(filters) or ([], 0))
    server.answers["GET", "/api/v1/whoami"] = (200, {"user": "ann", "role": "admin", "source": "uid"})
    flags = ("--mine", "-J", "sweep*", "--label", "team=nlp", "--label", "run=7", "--node", "n1")
    assert dgpu("ps", *flags, "-s", "failed,cancelled", "-s", "running", "--server", server.url)[0] == 0
    assert [each["status"] for each in asked] == ["failed", "cancelled", "running"]
    wanted = {"user": "ann", "name": "sweep*", "label": "team=nlp,run=7", "node": "n1", "fold": "true"}
    assert wanted.items() <= asked[0].items()
    for wrong in (("--mine", "-u", "bob"), ("-s", "failed,done"), ("--label", "x"), ("--array", "x")):
        assert dgpu("ps", *wrong, "--server", server.url)[0] == 2


def started(number, status, **facts):
    names = {"array_id": "task-7", "element_id": f"task-7_{number - 7}", "array_index": number - 7}
    return task(number, status, attempt=1, array_count=4, **names, **facts)


def test_run_of_an_array_shows_lines_with_their_index_and_returns_a_code_that_is_not_0(dgpu, server):
    server.answers["POST", "/api/v1/tasks"] = (201, {**SUBMITTED[1], "count": 4})
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=3, failed=1, failures=FAILURES[:1]))
    lists(server, ([started(7, "success"), started(8, "failed", exit_code=3)], 2))
    server.answers["GET", "/api/v1/tasks/task-7/logs"] = (200, b"one\ntwo")
    server.answers["GET", "/api/v1/tasks/task-8/logs"] = (200, b"bad\n")
    code, out, err = dgpu("run", "--array", "0-3", "--server", server.url, "--", "true")
    assert (code, sorted(out.splitlines())) == (3, ["[0] one", "[0] two", "[1] bad"])
    assert "1 failed, 3/4 done (failed: 7_1)" in err


def holds_output_of_one_and_lost_that_of_another(server) -> None:
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=3, failed=1))
    lists(server, ([started(7, "success"), started(8, "failed", exit_code=3), task(9)], 3))
    server.answers["GET", "/api/v1/tasks/task-7/logs"] = (200, b"one\ntwo")
    server.answers["GET", "/api/v1/tasks/task-8/logs"] = (
        404,
        problem(404, "output_unavailable", "It is lost."),
    )


def test_logs_of_an_array_have_a_heading_for_each_task_and_tell_of_lost_output(dgpu, server):
    holds_output_of_one_and_lost_that_of_another(server)
    code, out, _ = dgpu("logs", "7", "--server", server.url)
    wanted = "==> 7_0 (success) <==\none\ntwo\n\n==> 7_1 (exit code 3) <==\n[dgpu: It is lost.]\n"
    assert (code, out) == (0, wanted)
    assert dgpu("logs", "7", "--rank", "1", "--server", server.url)[0] == 2


def test_logs_of_an_array_are_documents_for_programs(dgpu, server):
    """Lost output is null, not an empty text."""
    holds_output_of_one_and_lost_that_of_another(server)
    code, out, _ = dgpu("logs", "7", "--json", "--server", server.url)
    documents = [json.loads(line) for line in out.splitlines()]
    assert (code, [(each["task_id"], each["output"], each["error"]) for each in documents]) == (
        0,
        [("task-7", "one\ntwo", ""), ("task-8", None, "It is lost.")],
    )
    assert dgpu("logs", "7", "-o", "name", "--server", server.url)[1] == "task-7\ntask-8\n"
    assert dgpu("logs", "7", "--json", "--rank", "1", "--server", server.url)[0] == 2


def test_logs_of_a_large_array_are_complete_in_a_pipe(dgpu, server, monkeypatch):
    monkeypatch.setattr("dgpu.cli.array_output.MAX_SHOWN", 1)
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=4))
    lists(server, ([started(7, "success"), started(8, "success")], 2))
    server.answers["GET", "/api/v1/tasks/task-7/logs"] = (200, b"one\n")
    server.answers["GET", "/api/v1/tasks/task-8/logs"] = (200, b"two\n")
    _, out, err = dgpu("logs", "7", "--server", server.url)
    assert out.count("==>") == 2
    assert "and more" not in err


def test_a_line_of_several_pieces_is_written_as_one():
    written = []
    lines = PrefixedLines(b"[3] ", written.append, threading.Lock())
    for piece in (b"a", b"b\nc\n", b"", b"\nd"):
        lines.feed(piece)
    lines.end()
    assert written == [b"[3] ab\n[3] c\n", b"[3] \n", b"[3] d\n"]
    lines.feed(b"x" * 70_000)
    assert len(written[-1]) > 70_000, "a line without an end is not kept in memory"


def test_why_of_an_array_explains_the_first_task_that_waits(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-7"] = (200, array(success=1, pending=3))
    lists(server, ([task(9, name="later")], 1))
    answer = {"task_id": "task-9", "status": "pending", "position": 1, "expected_start": None}
    server.answers["GET", "/api/v1/tasks/task-9/why"] = (200, answer)
    code, out, _ = dgpu("why", "7", "--server", server.url)
    assert code == 0
    assert out.startswith("task-7: 1/4 done, 3 waiting\n\ntask-9 (later) has waited for")
