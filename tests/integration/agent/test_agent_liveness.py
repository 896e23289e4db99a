"""A keeper that hangs, cannot be started or is older than its agent. Real processes and real signals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.agent import keeper_link, start_watch
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.run import process
from integration.agent import old_keeper
from integration.agent.keeping import Kept, is_alive, wait_for
from integration.agent.scheduling import ScriptedScheduler, start, until
from integration.agent.test_agent_host import agent, keeper_pid

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def short_starts(monkeypatch) -> None:
    """Start deadlines of two seconds."""
    monkeypatch.setattr(start_watch, "START_MS", 2_000)
    monkeypatch.setattr(process, "START_MS", 2_000)


def is_unfit(scheduler: ScriptedScheduler, words: str) -> bool:
    return bool(scheduler.heartbeats) and words in scheduler.heartbeats[-1].unfit


async def test_a_stopped_keeper_makes_the_node_unfit_until_it_continues(tmp_path) -> None:
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo x >> {tmp_path}/ran; exit 5"
    async with ScriptedScheduler(action="never") as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(start(1, command))
        await until(lambda: 1 in scheduler.started)
        with stopped(keeper_pid(tmp_path)):
            await until(lambda: is_unfit(scheduler, "does not answer"))
            assert str(keeper_pid(tmp_path)) in scheduler.heartbeats[-1].unfit
            (tmp_path / "go").touch()
        await until(lambda: not scheduler.heartbeats[-1].unfit)
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert (finished.outcome, finished.exit_code) == ("exited", 5)
        assert (tmp_path / "ran").read_text() == "x\n"
        await scheduler.order(start(2, "exit 6"))
        (finished,) = await until(lambda: scheduler.finished.get(2))
        assert finished.exit_code == 6


@pytest.mark.usefixtures("short_starts")
async def test_an_order_to_a_stopped_keeper_is_withdrawn_and_never_runs(tmp_path) -> None:
    async with ScriptedScheduler(action="never") as scheduler, agent(tmp_path, scheduler):
        with stopped(keeper_pid(tmp_path)):
            await scheduler.order(start(1, f"touch {tmp_path}/ran"))
            await until(lambda: is_unfit(scheduler, "does not answer"))
            await asyncio.sleep(
                2.5
            )  # past the deadline: the end is not certain before the keeper wakes or dies
            assert 1 not in scheduler.finished
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.outcome == "stopped"
        assert "withdrawn" in finished.error
        assert 1 not in scheduler.started
        assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("short_starts")
async def test_a_keeper_that_cannot_be_started_again_gives_its_orders_back(tmp_path, monkeypatch) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        monkeypatch.setattr(keeper_link.sys, "executable", "/nowhere/python")
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        await until(lambda: is_unfit(scheduler, "cannot be started"))
        await scheduler.order(start(1, f"touch {tmp_path}/ran"))
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert (finished.outcome, finished.error) == ("stopped", finished.error)
        assert "withdrawn" in finished.error
        monkeypatch.undo()
        await until(lambda: not scheduler.heartbeats[-1].unfit)
        await scheduler.order(start(2, "exit 2"))
        (finished,) = await until(lambda: scheduler.finished.get(2))
        assert finished.exit_code == 2
        assert not (tmp_path / "ran").exists()


async def test_an_agent_that_starts_beside_a_stopped_keeper_registers_when_it_knows_what_runs(
    tmp_path,
) -> None:
    """With an incomplete list the scheduler would give running tasks to other nodes."""
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"
    async with ScriptedScheduler(action="never") as scheduler:
        async with agent(tmp_path, scheduler, stop_tasks=False):
            await scheduler.order(start(1, command))
            await until(lambda: 1 in scheduler.started)
        pid = keeper_pid(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        opening = asyncio.create_task(_use(tmp_path, scheduler))
        await asyncio.sleep(1)
        assert len(scheduler.registrations) == 1
        os.kill(pid, signal.SIGCONT)
        await until(lambda: len(scheduler.registrations) == 2)
        assert [lease.lease_id for lease in scheduler.registrations[1].leases] == [1]
        (tmp_path / "go").touch()
        await opening
        assert scheduler.finished[1][0].exit_code == 5


async def _use(tmp_path: Path, scheduler: ScriptedScheduler) -> None:
    count = len(scheduler.registrations)
    async with agent(tmp_path, scheduler):
        await until(lambda: len(scheduler.registrations) > count)
        await until(lambda: scheduler.finished.get(1))


def test_a_task_of_a_stopped_keeper_does_not_outlive_its_lease(tmp_path) -> None:
    """The scheduler places the task on another node one margin after the end of the lease, whatever the keeper does."""
    kept = Kept(tmp_path)
    kept.spawn(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    kept.wait_started(1)
    task = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    kept.send({"agent": {"protocol": 2}, "word": [["n1", boot_ms(), 3_000, "freeze"]], "ping": 1})
    assert kept.wait_pong() == 1
    with stopped(kept.pid):
        wait_for(lambda: not is_alive(task))
    kept = Kept(tmp_path)
    assert kept.known[1]["end"]["outcome"] == "node_fault"
    kept.close()


def test_a_stop_of_the_keeper_within_the_lease_harms_nothing(tmp_path) -> None:
    kept = Kept(tmp_path)
    kept.spawn(1, "sleep 2; exit 7")
    kept.wait_started(1)
    kept.send({"word": [["n1", boot_ms(), 600_000, "freeze"]]})
    with stopped(kept.pid):
        wait_for(lambda: all(_is_zombie_or_gone(pid) for pid in kept.processes(1)), 60)
    assert kept.wait_ended(1)["exit_code"] == 7
    kept.close()


def test_an_order_read_after_its_start_deadline_is_not_started(tmp_path) -> None:
    kept = Kept(tmp_path)
    kept.spawn(1, f"touch {tmp_path}/ran", start_by_ms=boot_ms() - 1)
    end = kept.wait_ended(1)
    assert (end["outcome"], end["error"]) == ("stopped", "its start deadline passed before the start")
    assert not (tmp_path / "ran").exists()
    kept.close()


async def test_a_keeper_of_an_older_version_keeps_its_tasks_and_is_replaced_when_they_have_ended(
    tmp_path,
) -> None:
    settings = KeeperSettings(
        directory=str(tmp_path), work_dir=str(tmp_path / "tasks"), output_dir=str(tmp_path / "output")
    )
    for name in ("tasks", "output"):
        (tmp_path / name).mkdir()
    arguments = [sys.executable, old_keeper.__file__, json.dumps(dataclasses.asdict(settings))]
    subprocess.run(arguments, check=True, timeout=60)  # noqa: ASYNC221 - nothing else runs yet
    old = keeper_pid(tmp_path)
    link = keeper_link.connect(tmp_path)
    order = {
        "lease": 1, "task": 101, "attempt": 1, "node": "n1", "gpus": [], "cwd": "", "timeout_ms": 0, "grace_ms": 1_000,
        "argv": ["/bin/sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"], "env": {},
    }  # fmt: skip
    link.sendall(keeper_link.encode({"spawn": [order]}))
    wait_for(lambda: b"begin" in (tmp_path / "leases.log").read_bytes())
    link.close()
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        assert [lease.lease_id for lease in scheduler.registrations[0].leases] == [1]
        with stopped(old):
            await until(lambda: is_unfit(scheduler, "does not answer"))
        await until(lambda: not scheduler.heartbeats[-1].unfit)
        await scheduler.order(start(2, "exit 6"))
        (finished,) = await until(lambda: scheduler.finished.get(2))
        assert finished.exit_code == 6
        assert keeper_pid(tmp_path) == old
        (tmp_path / "go").touch()
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.exit_code == 5
        await until(lambda: (tmp_path / "keeper.json").exists() and keeper_pid(tmp_path) != old)
        await scheduler.order(start(3, "exit 7"))
        (finished,) = await until(lambda: scheduler.finished.get(3))
        assert finished.exit_code == 7


def _is_zombie_or_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
