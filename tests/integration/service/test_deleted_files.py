"""Files of a running scheduler are deleted one kind at a time. Nothing acknowledged is lost, and it is reported."""

from __future__ import annotations

import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dgpu.journal.segments import live_segments
from dgpu.journal.snapshot import SNAPSHOT_NAME, snapshot_index
from integration.service.serving import Served, listed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KINDS = [
    "journal/segment-*",
    "journal/next.journal",
    "journal/reserve.journal",
    "journal",
    "snapshot*.json",
    "archive",
    "logs",
    "lock",
    "follower.lock",
    ".",
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Served]]:
    started: list[Served] = []

    def begin() -> Served:
        options = {"segment_bytes": 1 << 16, "snapshot_interval_ms": 200}
        started.append(Served(tmp_path / "state", log=tmp_path / "log", **options))
        return started[-1]

    yield begin
    for served in started:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def submit(served: Served, count: int = 10) -> set[str]:
    """The acknowledged task; a refusal is returned by its code."""
    status, answer = served.try_to_ask(
        "/api/v1/tasks/batch", {"task": {"command": "x" * 900, "held": True}, "count": count}
    )
    if status == 200:
        return set(answer["task_ids"])
    assert (status, answer["code"]) == (503, "journal_unavailable")
    return set()


def remove(state: Path, kind: str) -> None:
    for path in [state] if kind == "." else sorted(state.glob(kind)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # files may appear while it is removed
            if path.exists():
                shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def kill_follower(scheduler: int) -> None:
    for child in Path(f"/proc/{scheduler}/task/{scheduler}/children").read_text().split():
        if b"dgpu.service.follower" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)


def is_ready(served: Served) -> bool:
    status, ready = served.try_to_ask("/ready")
    return status == 200 and ready["history_lag"] == 0


@pytest.mark.parametrize(
    ("kind", "end"),
    [(kind, signal.SIGKILL) for kind in KINDS] + [(kind, signal.SIGTERM) for kind in (KINDS[0], ".")],
)
def test_nothing_acknowledged_is_lost(
    start: Callable[[], Served], tmp_path: Path, kind: str, end: signal.Signals
) -> None:
    state = tmp_path / "state"
    served = start()
    known: set[str] = set()
    while not any((state / "archive").iterdir()):  # two snapshots, and segments that both cover
        known |= submit(served)
        time.sleep(0.05)
    remove(state, kind)
    for _ in range(30):
        known |= submit(served)
    last = served.try_to_ask("/ready")[1]["journal_index"]
    assert served.process.poll() is None
    assert listed(served) == known
    wait_until(lambda: is_ready(served) and snapshot_index(state / SNAPSHOT_NAME) >= last)
    assert live_segments(state)
    known |= submit(served)
    assert served.end(end) == (0 if end == signal.SIGTERM else -end)
    again = start()
    assert listed(again) == known
    assert submit(again) - known  # it goes on, with new ids
    wait_until(lambda: is_ready(again))


def test_deleted_files_are_reported_in_log_metrics_and_alerts(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    served = start()
    submit(served)
    shutil.rmtree(tmp_path / "state" / "journal")
    submit(served)
    wait_until(lambda: "recreated with all its groups" in (tmp_path / "log").read_text())
    port = served.at["http"]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    repairs = next(line for line in metrics.splitlines() if line.startswith("journal_repairs_total "))
    assert int(repairs.split()[1]) >= 1
    assert "\njournal_unavailable 0" in metrics


def test_deleted_folders_of_output_are_made_again_and_reported(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    """Also while no output arrives."""
    served = start()
    shutil.rmtree(tmp_path / "state" / "logs")
    wait_until(lambda: "output_files_changed" in (tmp_path / "log").read_text())
    assert (tmp_path / "state" / "logs" / "index.sqlite").stat().st_size > 0
    assert served.end(signal.SIGTERM) == 0


def test_while_the_folder_cannot_be_made_again_submits_get_503_and_reads_go_on(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    served = start()
    known = submit(served)
    wait_until(lambda: is_ready(served))
    shutil.rmtree(state / "journal")
    (state / "journal").write_text("not a folder")
    status, problem = served.try_to_ask("/api/v1/tasks", {"command": "true"})
    assert (status, problem["code"]) == (503, "journal_unavailable")
    assert "cannot be recreated" in problem["detail"]
    assert listed(served) == known
    status, ready = served.try_to_ask("/ready")
    assert (status, ready["storage_full"]) == (503, False)
    assert "cannot be recreated" in ready["detail"]
    (state / "journal").unlink()
    wait_until(lambda: is_ready(served))
    known |= submit(served)
    served.end(signal.SIGKILL)
    assert listed(start()) == known


def test_a_follower_that_cannot_start_is_reported_and_submits_wait_for_it(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    served = start()
    known = submit(served)
    wait_until(lambda: is_ready(served))
    history = state / "history.sqlite"
    for path in state.glob("history.sqlite*"):
        path.unlink()
    history.mkdir()  # no file can be made there
    (history / "x").touch()
    known |= submit(served)
    wait_until(lambda: served.try_to_ask("/ready")[0] == 503)
    ready = served.try_to_ask("/ready")[1]
    assert "failed 3 times" in ready["detail"]
    status, problem = served.try_to_ask("/api/v1/tasks", {"command": "true"})
    assert (status, problem["code"]) == (503, "journal_unavailable")
    assert served.try_to_ask(f"/api/v1/tasks/{min(known)}")[0] == 200
    (history / "x").unlink()
    history.rmdir()
    wait_until(lambda: is_ready(served))
    known |= submit(served)
    served.end(signal.SIGKILL)
    assert listed(start()) == known


def test_a_damaged_segment_under_a_running_scheduler_is_replaced_by_a_snapshot_of_its_memory(
    start: Callable[[], Served], tmp_path: Path
) -> None:
    """Neither the follower nor a restart could read it, but the scheduler still has everything in memory."""
    state = tmp_path / "state"
    served = start()
    known = submit(served)
    wait_until(lambda: is_ready(served))
    segment = live_segments(state)[-1].path
    with segment.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 20)
    kill_follower(served.process.pid)
    for _ in range(3):
        known |= submit(served)
    wait_until(lambda: "rescue_snapshot_written" in (tmp_path / "log").read_text())
    wait_until(lambda: is_ready(served))
    known |= submit(served)
    wait_until(lambda: is_ready(served))
    served.end(signal.SIGKILL)
    again = start()
    assert listed(again) == known
    wait_until(lambda: is_ready(again))
