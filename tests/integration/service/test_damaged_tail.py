"""A real scheduler, killed, its journal damaged, started again: by the command line, as an operator does it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 120.0


class Site:
    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = directory / "scheduler.yaml"
        self.config.write_text(
            f"server: {{http_address: '127.0.0.1:{self.port}', grpc_address: '127.0.0.1:0'}}\n"
            f"storage: {{snapshot_dir: {self.state}, segment_mb: 1}}\n"
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> None:
        self.process = subprocess.Popen(self.command(*flags), stderr=subprocess.DEVNULL, text=True)
        self.until(lambda: self.ask("/ready")["ready"])

    def refused(self, *flags: str) -> str:
        done = subprocess.run(
            self.command(*flags), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 1, done.stderr
        return done.stderr

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, "-m", "dgpu", "scheduler", "--config", str(self.config), *flags]

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def ask(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", content, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def submit(self, name: str) -> str:
        return str(self.ask("/api/v1/tasks", {"command": "true", "held": True, "name": name})["task_id"])

    def until(self, condition: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if found := condition():
                    return found
            except OSError:
                pass
            assert time.monotonic() < deadline
            assert self.process is None or self.process.poll() is None, "it ended"
            time.sleep(0.05)

    def zero_tail(self, size: int) -> None:
        path = max((self.state / "journal").glob("segment-*"))
        content = bytearray(path.read_bytes())
        end = len(content.rstrip(b"\0"))
        content[end - size : end] = bytes(size)
        path.write_bytes(content)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("size", [20, 400, 900])
def test_a_zeroed_tail_is_refused_by_name_and_may_be_accepted(site: Site, size: int) -> None:
    """Acknowledged tasks vanished, and the next submit got the id of one of them."""
    site.start()
    ids = [site.submit(f"t{number}") for number in range(10)]
    site.until(lambda: site.ask("/ready")["history_lag"] == 0)
    site.kill()
    site.zero_tail(size)
    said = site.refused()
    lost = [task_id for task_id in ids if f"{task_id}," in said or f"{task_id}." in said]
    assert lost
    assert lost == ids[-len(lost) :]
    assert f"Lost tasks ({len(lost)}): {', '.join(lost)}." in said
    assert site.refused() == said, "a refused start changes nothing"

    site.start("--accept-lost-tail")
    assert site.submit("new") == f"task-{len(ids) + 1}"
    for task_id in ids:
        task = site.ask(f"/api/v1/tasks/{task_id}")
        assert (task["status"], task["reason"]) == (
            ("failed", "lost_tail") if task_id in lost else ("pending", "held")
        )
    assert site.ask("/api/v1/tasks?limit=1")["total"] == len(ids) + 1
    epoch = site.ask("/ready")["epoch"]
    site.kill()
    site.start()
    assert site.ask("/ready")["epoch"] == epoch + 1
    site.until(lambda: site.ask("/ready")["history_lag"] == 0)
    assert site.ask(f"/api/v1/tasks/{ids[-1]}")["reason"] == "lost_tail"


def test_groups_that_the_history_never_saw_are_missed_all_the_same(site: Site) -> None:
    """The history lags. The mark is written with each group, and a killed process leaves it intact."""
    site.start()
    first = site.submit("first")
    last = site.submit("last")
    site.kill()
    for path in site.state.glob("history.sqlite*"):
        path.unlink()
    site.zero_tail(20)
    said = site.refused()
    assert "acknowledged records group" in said
    assert f"Lost tasks (1): {last}." in said
    site.start("--accept-lost-tail")
    assert site.ask(f"/api/v1/tasks/{first}")["status"] == "pending"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        site.ask(f"/api/v1/tasks/{last}")
    assert site.submit("new") == "task-3", "the number of a lost task is not given out again"


def test_an_older_version_refuses_a_newer_journal_by_name(site: Site) -> None:
    site.start()
    site.submit("one")
    site.kill()
    path = max((site.state / "journal").glob("segment-*"))
    content = bytearray(path.read_bytes())
    content[4:6] = (9).to_bytes(2, "little")  # the schema of the first record
    content[36:40] = zlib.crc32(content[:36]).to_bytes(4, "little")
    path.write_bytes(content)
    said = site.refused()
    assert "was written by a newer version of dgpu: group 1 is written in schema 9" in said
