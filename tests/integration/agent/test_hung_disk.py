"""A keeper whose own disk hangs: its log, its output or its directories do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.agent import start_watch
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.run import process
from integration.agent.keeping import Kept, children_of, is_alive, pid_in, process_state, wait_for, word
from integration.agent.scheduling import ScriptedScheduler, start, until
from integration.agent.test_agent_host import agent, keeper_pid
from integration.agent.test_agent_liveness import is_unfit

pytestmark = pytest.mark.slow
FIRST_FILE = f"{0:016d}"


@pytest.fixture
def kept(tmp_path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.close()


def hang(kept: Kept, lease: int) -> Path:
    """Runs a task whose output goes to a pipe without a reader. Opening it takes as long as on a dead disk."""
    fifo = kept.directory / "output" / str(lease) / FIRST_FILE
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    kept.spawn(lease, "echo into the void; exec sleep 1000")
    kept.wait_started(lease)
    wait_for(kept.is_stalled)
    return fifo


@contextlib.contextmanager
def answering(fifo: Path) -> Iterator[None]:
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(reader)


def test_time_limits_and_stops_hold_while_the_disk_hangs(kept, tmp_path) -> None:
    kept.spawn(1, f"echo $$ > {tmp_path}/one; exec sleep 1000")
    kept.wait_started(1)
    kept.spawn(2, f"echo $$ > {tmp_path}/two; exec sleep 1000", timeout_ms=6_000)
    one, two = pid_in(tmp_path / "one"), pid_in(tmp_path / "two")
    fifo = hang(kept, 3)
    kept.send({"stop": [[1, 0, "stopped"]]})
    wait_for(lambda: not is_alive(one))
    wait_for(lambda: not is_alive(two))
    assert kept.is_stalled(), "it answers, and says what is wrong"
    assert not kept.ended, "an end is told when it is recorded"
    with answering(fifo):
        assert kept.wait_ended(1)["outcome"] == "stopped"
        assert kept.wait_ended(2)["outcome"] == "timeout"
        wait_for(lambda: not kept.is_stalled())
        kept.spawn(4, "echo hello; exit 4")
        assert kept.wait_ended(4)["exit_code"] == 4
        assert kept.output(4) == b"hello\n"
        kept.send({"stop": [[3, 0, "stopped"]]})
        kept.wait_ended(3)


def test_the_task_lease_holds_while_the_disk_hangs(kept, tmp_path) -> None:
    kept.spawn(1, f"echo $$ > {tmp_path}/one; exec sleep 1000")
    one = pid_in(tmp_path / "one")
    fifo = hang(kept, 2)
    kept.send(word(lease_ms=500, action="freeze"))
    kept.wait_frozen(1)
    assert process_state(one) == "T" or wait_for(lambda: "frozen 1" in _group_events(one))
    kept.send(word(lease_ms=600_000, action="freeze") | {"thaw": [1, 2]})
    with answering(fifo):
        kept.send({"stop": [[1, 0, "stopped"], [2, 0, "stopped"]]})
        kept.wait_ended(1)
        kept.wait_ended(2)


def test_an_order_is_not_started_while_the_disk_hangs_and_can_be_withdrawn(kept, tmp_path) -> None:
    fifo = hang(kept, 1)
    kept.send({"spawn": [kept.order(2, f"touch {tmp_path}/ran"), kept.order(3, "exit 3")]})
    kept.send({"stop": [[2, 0, "stopped"]]})
    end = kept.wait_ended(2)
    assert (end["outcome"], end["error"]) == ("stopped", "stopped before it was started")
    kept.send({"forget": [2]})
    assert 3 not in kept.started
    with answering(fifo):
        assert kept.wait_ended(3)["exit_code"] == 3
        kept.send({"stop": [[1, 0, "stopped"]]})
        kept.wait_ended(1)
    assert not (tmp_path / "ran").exists()
    kept.disconnect()
    kept.connect_again()
    assert 2 not in kept.known


def test_with_the_scribe_the_keeper_ends_and_the_next_one_tells(tmp_path) -> None:
    """Without the scribe no end can be recorded, so the node starts again."""
    kept = Kept(tmp_path)
    kept.spawn(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    task, keeper, guard = pid_in(tmp_path / "pid"), kept.pid, kept.guard_pid
    os.kill(kept.scribe_pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, (task, keeper, guard))))
    kept = Kept(tmp_path)
    assert kept.known[1]["end"]["error"] == "the keeper died, and its tasks with it"
    assert "scribe" in (tmp_path / "keeper" / "keeper.log").read_text()
    kept.close()


def test_a_log_that_hangs_does_not_keep_the_guard_from_ending_tasks(tmp_path) -> None:
    """The guard writes to the log when it replaces a hung keeper. The tasks must end first."""
    log = tmp_path / "keeper" / "keeper.log"
    log.parent.mkdir()
    os.mkfifo(log)
    pipe = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    kept = Kept(tmp_path)
    kept.spawn(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    task, guard = pid_in(tmp_path / "pid"), kept.guard_pid
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")
    kept.send({"agent": {"protocol": 2}, "word": [["n1", boot_ms(), 2_000, "freeze"]], "ping": 1})
    assert kept.wait_pong() == 1
    os.kill(kept.pid, signal.SIGSTOP)
    wait_for(lambda: not is_alive(task))
    assert is_alive(guard), "it waits for its log"
    said = b""
    while b"did not enforce" not in said:
        with contextlib.suppress(BlockingIOError):
            said += os.read(pipe, 65_536)
    wait_for(lambda: not is_alive(guard))
    os.close(pipe)
    log.unlink()


async def test_a_node_whose_disk_hangs_is_unfit_and_gives_its_orders_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(start_watch, "START_MS", 2_000)
    monkeypatch.setattr(process, "START_MS", 2_000)
    async with ScriptedScheduler(action="never") as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(start(1, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"))
        await until(lambda: 1 in scheduler.started)
        scribe = _scribe_beside(keeper_pid(tmp_path))
        os.kill(scribe, signal.SIGSTOP)
        try:
            await scheduler.order(start(2, f"touch {tmp_path}/ran"))
            await until(lambda: is_unfit(scheduler, "the disk of its keeper"))
            (withdrawn,) = await until(lambda: scheduler.finished.get(2))
            assert withdrawn.outcome == "stopped"
            (tmp_path / "go").touch()
            await asyncio.sleep(0.5)
            assert 1 not in scheduler.finished
        finally:
            os.kill(scribe, signal.SIGCONT)
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.exit_code == 5
        await until(lambda: not scheduler.heartbeats[-1].unfit)
        await scheduler.order(start(3, "exit 3"))
        (finished,) = await until(lambda: scheduler.finished.get(3))
        assert finished.exit_code == 3
        assert not (tmp_path / "ran").exists()


def _scribe_beside(keeper: int) -> int:
    guard = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
    scribe, _terminals = sorted(set(children_of(guard)) - {keeper})
    return scribe


def _group_events(pid: int) -> str:
    group = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].partition("::")[2]
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        with contextlib.suppress(OSError):
            return Path(f"{root}{group}/cgroup.events").read_text()
    return ""
