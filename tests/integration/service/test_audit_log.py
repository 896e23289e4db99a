"""The audit log of a real scheduler: it survives kill -9 and is rebuilt from the journal, row for row."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dgpu.service.recovery.history_rebuild import rebuild_history

from .serving import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def rows(data_dir: Path) -> list[Any]:
    with sqlite3.connect(data_dir / "history.sqlite") as connection:
        return connection.execute("SELECT * FROM audit ORDER BY at, journal_index, position").fetchall()


def told(served: Served) -> list[tuple[str, str, int]]:
    page = served.ask("/api/v1/audit?limit=1000")
    assert page["history_behind"] == 0
    return [(each["action"], each["code"] or each["result"], each["count"]) for each in page["entries"]]


def test_answered_attempts_survive_a_kill(tmp_path) -> None:
    served = Served(tmp_path)
    for _ in range(20):
        served.ask("/api/v1/tasks", {"command": "true"})
    assert served.try_to_ask("/api/v1/tasks", {"command": 7})[0] == 400
    assert served.try_to_ask("/api/v1/tasks", {"command": 8})[0] == 400
    served.end(signal.SIGKILL)
    again = Served(tmp_path)
    try:
        # The second refusal was only counted; the first one and every change was durable before its answer.
        assert told(again) == [
            ("task.submit", "invalid_field", 1),
            *[("task.submit", "done", 1)] * 20,
        ]
    finally:
        again.end(signal.SIGTERM)


def test_counted_refusals_are_written_at_a_clean_stop(tmp_path) -> None:
    served = Served(tmp_path)
    for _ in range(5):
        served.try_to_ask("/api/v1/tasks", {"command": 7})
    served.end(signal.SIGTERM)
    assert sum(row[-2] for row in rows(tmp_path)) == 5


def test_a_rebuilt_history_has_the_same_rows(tmp_path) -> None:
    served = Served(tmp_path)
    for number in range(10):
        served.ask("/api/v1/tasks", {"command": "true"})
        served.try_to_ask(f"/api/v1/tenants/{number}", None)
    served.try_to_ask("/api/v1/nodes/n1/drain", {})
    served.end(signal.SIGTERM)
    before = rows(tmp_path)
    assert len(before) >= 11
    rebuild_history(tmp_path, lambda _: None)
    assert rows(tmp_path) == before
