"""`dgpu audit`: a table for people, JSON lines for programs, and nothing that moves the cursor."""

from __future__ import annotations

import json

import pytest

ENTRY = {
    "id": "7.1", "at": "2026-05-04T10:00:00.000Z", "user": "ann", "role": "user", "source": "token",
    "token_id": "k2m4p6r7t2v5", "action": "task.change", "call": "DELETE /api/v1/tasks/{task_id}", "subject": "task-7",
    "tenant_id": "vision", "tasks": 1, "origin": "10.0.0.7", "request_id": "r1", "result": "done", "status": None,
    "code": None, "count": 1, "since": None,
}  # fmt: skip
GUESS = {
    **ENTRY, "id": "9.0", "user": None, "role": None, "source": None, "token_id": None, "subject": None, "tasks": 0,
    "tenant_id": None, "result": "refused", "code": "wrong_token", "status": 403, "count": 9_999,
}  # fmt: skip


def page(*entries, cursor=None, behind=0):
    return 200, {"entries": list(entries), "next_cursor": cursor, "history_behind": behind}


def test_the_newest_entry_is_the_last_line(dgpu, server):
    server.answers["GET", "/api/v1/audit"] = page(GUESS, {**ENTRY, "tasks": 3})
    code, out, _ = dgpu("--server", server.url, "audit")
    assert code == 0
    head, first, last = out.splitlines()
    assert head.split() == ["TIME", "USER", "ORIGIN", "ACTION", "SUBJECT", "TENANT", "RESULT", "TIMES"]
    assert first.split()[-7:] == ["ann", "10.0.0.7", "task.change", "task-7", "(+2)", "vision", "done"]
    assert last.split()[-5:] == ["(unknown)", "10.0.0.7", "task.change", "wrong_token", "x9,999"]


def test_names_cannot_write_to_the_terminal(dgpu, server):
    evil = {**ENTRY, "user": "\x1b[2Jann\nbob", "subject": "\u202etask", "tenant_id": "a\rb"}
    server.answers["GET", "/api/v1/audit"] = page(evil)
    _, out, _ = dgpu("--server", server.url, "audit", "-o", "wide")
    assert len(out.splitlines()) == 2
    assert not {"\x1b", "\r", "\u202e"} & set(out)


def test_json_lines_follow_the_pages(dgpu, server):
    server.answers["GET", "/api/v1/audit"] = [page(GUESS, cursor="9-9-0"), page(cursor="8-8-0"), page(ENTRY)]
    code, out, _ = dgpu("--server", server.url, "audit", "--format", "jsonl")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["9.0", "7.1"]


def test_the_limit_ends_the_pages_and_says_so(dgpu, server):
    server.answers["GET", "/api/v1/audit"] = page(GUESS, cursor="9-9-0")
    code, out, err = dgpu("--server", server.url, "audit", "--limit", "1")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "--limit 0" in err


def test_a_history_that_lags_is_mentioned(dgpu, server):
    server.answers["GET", "/api/v1/audit"] = page(ENTRY, behind=4)
    assert "4 groups behind" in dgpu("--server", server.url, "audit")[2]


@pytest.mark.parametrize("wrong", [("--result", "maybe"), ("--format", "xml"), ("--limit", "-1")])
def test_wrong_flags_are_named(dgpu, server, wrong):
    code, _, err = dgpu("--server", server.url, "audit", *wrong)
    assert code == 2
    assert wrong[0] in err
