"""kill -9 of agents, keepers and workers while calls run: none runs twice at the same time, each one ends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dgpu.wire.proto import agent_pb2 as pb
from integration.agent.keeping import is_alive
from integration.agent.scheduling import ScriptedScheduler, until
from integration.agent.test_agent_workers import call, directory_of_socket, started_child, worker, worker_pids

pytestmark = pytest.mark.slow

ROUNDS = 4
CALLS = 4


class Placing:
    """The part of a scheduler that gives calls to two workers in turn, and again if their leases have ended."""

    def __init__(self, scheduler: ScriptedScheduler, folder: Path) -> None:
        self.scheduler = scheduler
        self.folder = folder
        self.leases: dict[int, tuple[int, int]] = {}  # of calls that have not ended: their task and worker
        self.workers: list[int] = []
        self.results: set[int] = set()  # tasks
        self.registered = 0
        self._next_lease = 1_000
        self._turn = list(range(CALLS))

    async def add_worker(self) -> int:
        self._next_lease = lease = self._next_lease + 1
        await self.scheduler.order(worker(lease, gpus=()))
        self.workers.append(lease)
        await until(lambda: self._is_ready(lease) or self.scheduler.finished.get(lease))
        return lease

    def _is_ready(self, lease: int) -> bool:
        state = self.scheduler.workers.get(lease)
        return state is not None and state.ready

    async def _place(self, task: int) -> None:
        self._next_lease = lease = self._next_lease + 1
        self._turn[task] += 1  # a call is placed again on the other worker
        chosen = self.workers[self._turn[task] % len(self.workers)]
        self.leases[lease] = task, chosen
        placed = call(lease, "holds", str(self.folder), str(task), worker_lease_id=chosen)
        await self.scheduler.order(calls=[placed])

    async def look(self) -> None:
        """Places again what was lost: with the worker, or with a registration that does not hold it."""
        for lease in [lease for lease in self.workers if self.scheduler.finished.get(lease)]:
            self.workers.remove(lease)
            self._lose(lambda held, lost=lease: self.leases[held][1] != lost)
        while len(self.workers) < 2:
            await self.add_worker()
        if len(self.scheduler.registrations) > self.registered:
            self.registered = len(self.scheduler.registrations)
            held = {lease.lease_id for lease in self.scheduler.registrations[-1].leases}
            self._lose(lambda lease: lease in held)
        for lease, (task, _) in list(self.leases.items()):
            if ends := self.scheduler.returned.get(lease):
                del self.leases[lease]
                self.results |= {task} if ends[0].outcome == "returned" else set()
        placed = self.results | {task for task, _ in self.leases.values()}
        for task in range(CALLS):
            if task not in placed:
                await self._place(task)

    def _lose(self, stands: Callable[[int], bool]) -> None:
        reported = self.scheduler.returned
        self.leases = {lease: of for lease, of in self.leases.items() if stands(lease) or reported.get(lease)}


def remove_sockets(directory: Path) -> None:
    """The next keeper would do it, but there is none."""
    shutil.rmtree(directory_of_socket(directory).parent, ignore_errors=True)


def twice(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.twice")]


def keeper_pid(directory: Path) -> int:
    return json.loads((directory / "keeper.json").read_text())["pid"]


async def test_kills_never_make_a_call_run_twice_at_the_same_time(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("DGPU_KILL_SEED", "1"))
    rounds = int(os.environ.get("DGPU_KILL_ROUNDS", ROUNDS))
    directory, gate = tmp_path / "agent", tmp_path / "gate"
    async with ScriptedScheduler() as scheduler:
        agent = started_child(directory, scheduler)
        placing = Placing(scheduler, tmp_path)
        try:
            for number in range(rounds):
                placing.results.clear()
                gate.unlink(missing_ok=True)
                await placing.look()
                await asyncio.sleep(chance.random() * 0.06)
                victim = chance.choice(["agent", "agent", "worker", "keeper"])
                if victim == "agent":
                    agent.kill()
                    agent.wait()
                    agent = started_child(directory, scheduler)
                    await until(lambda: len(scheduler.registrations) > placing.registered)
                elif victim == "keeper":
                    os.kill(keeper_pid(directory), signal.SIGKILL)
                elif alive := worker_pids(directory):
                    os.kill(chance.choice(alive), signal.SIGKILL)
                for _ in range(20):  # calls that are placed again meet those that still run
                    await placing.look()
                    await asyncio.sleep(0.01)
                gate.touch()
                async with asyncio.timeout(60):
                    while len(placing.results) < CALLS:
                        await placing.look()
                        await asyncio.sleep(0.01)
                assert twice(tmp_path) == [], (number, victim)
        finally:
            agent.kill()
            agent.wait()
            os.kill(keeper_pid(directory), signal.SIGKILL)
    await until(lambda: not worker_pids(directory))
    remove_sockets(directory)


async def test_with_its_keeper_a_worker_and_its_calls_end(tmp_path: Path) -> None:
    async with ScriptedScheduler() as scheduler:
        agent = started_child(tmp_path, scheduler)
        placing = Placing(scheduler, tmp_path)
        lease = await placing.add_worker()
        await scheduler.order(calls=[call(20, "waits_for", str(tmp_path / "never"), worker_lease_id=lease)])
        await until(lambda: 20 in scheduler.started)
        (pid,) = worker_pids(tmp_path)
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        (lost,) = await until(lambda: scheduler.returned.get(20))
        (end,) = await until(lambda: scheduler.finished.get(lease))
        assert (lost.outcome, end.outcome) == ("worker_lost", "node_fault")
        assert isinstance(lost, pb.Returned)
        assert not is_alive(pid)
        agent.kill()
        agent.wait()
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        remove_sockets(tmp_path)
