"""A list of very many tasks: what is fetched, what is shown, and what is said about the rest."""

from __future__ import annotations

import json
import shlex

import pytest

from dgpu.cli import ps

from .conftest import task


def pages(server, *answers):
    server.answers["GET", "/api/v1/tasks"] = [
        (200, {"tasks": tasks, "total": total, "next_cursor": cursor}) for tasks, total, cursor in answers
    ]


def test_when_the_running_fill_the_screen_the_waiting_are_only_counted(dgpu, server):
    """They were all fetched once: a minute for 400,000 of them."""
    pages(
        server,
        ([task(2, "running"), task(1, "running")], 2, None),
        ([task(9)], 400_000, "next"),
    )
    code, out, err = dgpu("ps", "--limit", "2", "--server", server.url)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["task-1", "task-2"]
    assert "… 400,000 more (dgpu ps --limit 0)" in err
    assert [path for _, path, _ in server.requests if "tasks" in path] == ["/api/v1/tasks"] * 2


@pytest.mark.parametrize(
    "flags", [["-a"], ["-A", "team a", "--pool", "batch"], ["-s", "failed", "-s", "success", "-p", "high"]]
)
def test_the_rest_of_a_list_is_had_with_the_same_flags(dgpu, server, flags):
    pages(server, ([task(9, "failed")], 5, "next"))
    _, _, err = dgpu("ps", *flags, "--limit", "1", "--server", server.url)
    assert f"more (dgpu ps {shlex.join(flags)} --limit 0)" in err


@pytest.mark.parametrize("form", ["json", "name"])
def test_more_than_a_screen_can_hold_is_passed_on_page_by_page(dgpu, server, monkeypatch, form):
    monkeypatch.setattr(ps, "_PIPE_ROWS", 3)
    pages(
        server,
        ([task(5, "failed")], 5, "c"),  # the count
        ([task(5, "failed"), task(4, "failed"), task(3, "failed")], 5, "c"),
        ([task(2, "failed"), task(1, "failed")], 5, None),
    )
    code, out, _ = dgpu("ps", "-s", "failed", "-o", form, "--server", server.url)
    assert code == 0
    names = ["task-5", "task-4", "task-3", "task-2", "task-1"]
    if form == "name":
        assert out.split() == names
    else:
        told = json.loads(out)
        assert (told["total"], [each["task_id"] for each in told["tasks"]]) == (5, names)


def test_why_says_when_nobody_has_looked_ahead_yet(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-3"] = (200, task(3))
    why = {"task_id": "task-3", "status": "pending", "position": 1, "expected_start": None}
    server.answers["GET", "/api/v1/tasks/task-3/why"] = [
        (200, {**why, "looked_ahead": False}),
        (200, {**why, "looked_ahead": True}),
    ]
    assert "Expected start: no forecast yet" in dgpu("why", "3", "--server", server.url)[1]
    assert "Expected start: unknown" in dgpu("why", "3", "--server", server.url)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", ""], "'' is not a tenant's name; expected 1 to 64 letters"),
        (["set", "a/b"], "'a/b' is not a tenant's name"),
        (["show", ".."], "'..' is not a tenant's name"),
        (["remove", "good", "a/b"], "'a/b' is not a tenant's name"),
        (["set", "team", "--pools", "batch,foo"], "'foo' of 'batch,foo' is not a pool; expected online"),
        (["set", "team", "--pools", ""], "'' of '' is not a pool"),
    ],
)
def test_a_wrong_tenant_is_refused_before_anything_is_sent(dgpu, server, arguments, words):
    code, out, err = dgpu("tenant", *arguments, "--server", server.url)
    assert (code, out) == (2, "")
    assert words in err
    assert server.requests == []


def entry(position, **facts):
    return {**task(position), "position": position, **facts}


def test_the_queue_shows_what_a_task_without_a_name_runs(dgpu, server):
    entries = [
        entry(1, command=["python", "train it.py"]),
        entry(2, name="fold", command="true", array_index=3, nodes=2, gpu_count=8),
        entry(3, allocation=True),
    ]
    server.answers["GET", "/api/v1/queue"] = (200, {"queue": entries, "total": 3})
    code, out, _ = dgpu("--server", server.url, "queue")
    assert code == 0
    for line, words in zip(
        out.splitlines()[1:], ("python 'train it.py'", "[3] fold", "allocation"), strict=True
    ):
        assert words in line
    assert "2x8" in out
