"""The whole service in a process of its own: started, used, stopped, killed, started again."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.service.serving import PROGRAM, Served, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Served]]:
    started: list[Served] = []

    def begin() -> Served:
        started.append(Served(tmp_path / "state"))
        return started[-1]

    yield begin
    for served in started:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def test_a_clean_stop_ends_with_0_and_leaves_a_snapshot_of_everything(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    served = start()
    for _ in range(3):
        served.ask("/api/v1/tasks", {"command": "true"})
    assert served.end(signal.SIGTERM) == 0
    snapshot = json.loads((tmp_path / "state" / "snapshot.json").read_text())
    assert "tasks" in json.dumps(snapshot)
    again = start()
    assert again.at["epoch"] == 2
    assert again.ask("/api/v1/tasks?limit=10")["total"] == 3


def test_killed_in_the_middle_of_submits_it_loses_none_that_was_acknowledged(
    start: Callable[[], Served],
) -> None:
    acknowledged: list[str] = []
    for _ in range(3):
        served = start()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            acknowledged.append(served.ask("/api/v1/tasks", {"command": "true"})["task_id"])
        served.end(signal.SIGKILL)
    served = start()
    known = {served.ask(f"/api/v1/tasks/{task_id}")["task_id"] for task_id in acknowledged}
    assert known == set(acknowledged)
    assert len(acknowledged) == len(known)


def test_a_second_scheduler_on_the_same_directory_does_not_start(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    served = start()
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert f"in use already, by process {served.process.pid}" in second.stderr
    assert served.ask("/ready")["ready"]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = PROGRAM.replace("http=any_port", f'http=Address(host="127.0.0.1", port={port})')
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "state")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port} for HTTP" in done.stderr


def _overwritten(history: Path) -> None:
    for file in (history, history.with_name(f"{history.name}-wal")):
        with file.open("r+b") as content:
            content.write(b"\xa5" * file.stat().st_size)


def _replaced(history: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        history.with_name(history.name + suffix).unlink()
    history.write_bytes(b"garbage" * 1_000)


@pytest.mark.parametrize("harm", [Path.unlink, _replaced, _overwritten])
def test_a_history_that_is_damaged_while_running_is_made_again_and_reports_come_back(
    start: Callable[[], Served], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    served = start()
    served.ask("/api/v1/tasks/batch", {"task": {"command": "true"}, "count": 40})
    served.ask("/api/v1/tasks/cancel", {"status": "pending"})
    wait_until(lambda: served.ask("/ready")["history_lag"] == 0)
    harm(tmp_path / "state" / "history.sqlite")
    answers: list[tuple[int, Any]] = []

    def report_is_back() -> bool:
        minutes = 60 + len(answers)  # the same question would be answered from memory
        answers.append(served.try_to_ask(f"/api/v1/history/usage?since={minutes}m"))
        return answers[-1][0] == 200

    wait_until(report_is_back)
    refusals = [body for status, body in answers if status != 200]
    assert {(body["status"], body["code"]) for body in refusals} == {(503, "history_damaged")}
    assert "being rebuilt" in refusals[0]["detail"]
    assert answers[-1][1]["total"]["cancelled"] == 40
    assert served.ask("/api/v1/tasks?limit=1")["total"] == 40
    served.ask("/api/v1/tasks", {"command": "true"})
    wait_until(lambda: served.ask("/ready")["history_lag"] == 0)


def test_values_of_the_environment_are_in_clear_in_no_file(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    """docs/operations.md says where secrets are; this test checks it."""
    served = start()
    task = {"command": "true", "env": {"API_KEY": "Geheim-4711"}}
    task_id = served.ask("/api/v1/tasks", task)["task_id"]
    served.ask(f"/api/v1/tasks/{task_id}")
    served.end(signal.SIGTERM)
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert {"journal", "snapshot.json", "secrets.key"} <= {
        path.relative_to(tmp_path / "state").parts[0] for path in files
    }
    assert [path for path in files if b"Geheim-4711" in path.read_bytes()] == []
    # The key and the ciphertext are for the scheduler's user only.
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
