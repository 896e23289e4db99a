"""Workers under a whole agent: real gRPC, a real keeper, real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpu.agent import chunks
from dgpu.agent.host import serve_agent
from dgpu.agent.probe.simulated import simulated_gpu_id
from dgpu.agent.worker_dirs import worker_dir_of
from dgpu.core.model.ids import NodeId
from dgpu.core.model.task import WorkerSetup
from dgpu.wire.proto import agent_pb2 as pb
from integration.agent import agent_child
from integration.agent.agent_child import options
from integration.agent.keeping import is_alive
from integration.agent.scheduling import ScriptedScheduler, start, until
from worker_process import FUNCTIONS

pytestmark = pytest.mark.slow

GPU0 = simulated_gpu_id(NodeId("n1"), 0)
WORKER = 7


@contextlib.asynccontextmanager
async def agent(directory: Path, scheduler: ScriptedScheduler, **facts: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    facts = {"stop_tasks": True, "grace_ms": 500} | facts
    serving = asyncio.create_task(serve_agent(options(directory, scheduler.port, **facts), stop=stop))
    known = len(scheduler.registrations)
    try:
        await until(lambda: len(scheduler.registrations) > known or serving.done())
        yield
    finally:
        stop.set()
        await serving


def started_child(directory: Path, scheduler: ScriptedScheduler) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, agent_child.__file__, str(directory), str(scheduler.port)])


def worker(lease: int = WORKER, gpus: tuple[str, ...] = (GPU0,)) -> pb.Start:
    setup = WorkerSetup(app_id="app", python=sys.executable, python_path=(str(FUNCTIONS),))
    return start(lease, "unused", gpus=gpus, worker=setup, nonce="x")


def call(lease: int, function: str, *args: Any, **facts: Any) -> pb.Call:
    body = msgspec.msgpack.encode([args, {}])
    given = {"args": body, "worker_lease_id": WORKER} | facts
    return pb.Call(
        lease_id=lease, task_id=lease + 100, attempt=1, nonce="x", entrypoint=f"plain:{function}", **given
    )


async def ready(scheduler: ScriptedScheduler, lease: int = WORKER) -> None:
    await until(lambda: lease in scheduler.workers and scheduler.workers[lease].ready)


async def end_of(scheduler: ScriptedScheduler, lease: int) -> pb.Returned:
    ends = await until(lambda: scheduler.returned.get(lease))
    return ends[0]


async def value_of(scheduler: ScriptedScheduler, lease: int) -> Any:
    end = await end_of(scheduler, lease)
    assert end.outcome == "returned", end
    return msgspec.msgpack.decode(end.result)


def directory_of_socket(directory: Path) -> Path:
    return Path(worker_dir_of(str(directory), f"{directory}/tasks")) / str(WORKER)


def worker_pids(directory: Path) -> list[int]:
    """All processes that have a socket of this agent in their environment."""
    variable = f"DGPU_WORKER_SOCKET={directory_of_socket(directory).parent}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes().split(b"\0")
                found += [int(entry.name)] if any(each.startswith(variable) for each in environment) else []
    return found


async def test_calls_run_in_a_worker_with_their_output_results_and_errors(tmp_path: Path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(worker())
        await ready(scheduler)
        await scheduler.order(calls=[call(20, "add", 1, 2), call(21, "prints"), call(22, "fails", "no")])
        assert await value_of(scheduler, 20) == 3
        failed = await end_of(scheduler, 22)
        assert (failed.outcome, failed.error) == ("raised", "ValueError: no")
        assert "in fails" in failed.traceback
        printed = await end_of(scheduler, 21)
        sent = await until(lambda: scheduler.chunks.get(21))
        await until(lambda: sent[-1].last)
        data = b"".join(chunk.data for chunk in sent)
        assert sorted(data.split(b"\n")) == [b"", b"by C code", b"by Python", b"by a child", b"to stderr"]
        assert (printed.output_bytes, {chunk.task_id for chunk in sent}) == (len(data), {121})
        await until(lambda: not (tmp_path / "output" / "21").exists())
        assert 20 not in scheduler.chunks
        # Large content travels by reference.
        argument = msgspec.msgpack.encode([[b"x" * 3_000_000], {}])
        digest = hashlib.sha256(argument).hexdigest()
        scheduler.contents[digest] = argument
        await scheduler.order(
            calls=[call(23, "length", args=b"", args_ref=digest), call(24, "long_bytes", 900_000)]
        )
        assert await value_of(scheduler, 23) == 3_000_000
        large = await end_of(scheduler, 24)
        assert (large.outcome, large.result) == ("returned", b"")
        assert msgspec.msgpack.decode(scheduler.put[large.ref]) == b"y" * 900_000
        assert [path.name for path in directory_of_socket(tmp_path).iterdir()] == ["s"]
        # Told to leave, it exits by itself.
        await scheduler.order(stops=(WORKER,))
        (end,) = await until(lambda: scheduler.finished.get(WORKER))
        assert (end.outcome, end.exit_code, end.signal) == ("stopped", 0, 0)
        assert not directory_of_socket(tmp_path).exists()


async def test_much_output_is_bounded_and_does_not_hold_up_the_worker(tmp_path: Path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler, output_cap_bytes=1 << 20):
        scheduler.stores = False
        await scheduler.order(worker())
        await ready(scheduler)
        await scheduler.order(calls=[call(20, "prints_much", 40), call(21, "nothing")])
        assert await value_of(scheduler, 20) == 40
        assert (await end_of(scheduler, 20)).output_bytes == 40 << 20
        assert (await end_of(scheduler, 21)).outcome == "returned"
        await until(lambda: scheduler.chunks.get(20) and scheduler.chunks[20][-1].last)
        assert 0 < chunks.size(tmp_path / "output" / "20") <= 2 << 20


async def test_a_killed_worker_and_a_call_that_does_not_end(tmp_path: Path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(worker())
        await ready(scheduler)
        never = str(tmp_path / "never")
        await scheduler.order(calls=[call(20, "waits_for", never, "half"), call(21, "nothing")])
        await until(lambda: 20 in scheduler.progress)
        await scheduler.order(stops=(20,))
        assert (await end_of(scheduler, 20)).outcome == "cancelled"
        assert (await end_of(scheduler, 21)).outcome == "returned"
        await scheduler.order(calls=[call(22, "waits_without_looking", never), call(23, "nothing")])
        await until(lambda: 22 in scheduler.started)
        os.kill(worker_pids(tmp_path)[0], signal.SIGKILL)
        lost = await end_of(scheduler, 22)
        assert (lost.outcome, lost.error) == ("worker_lost", "its worker was killed by signal 9")
        assert (await end_of(scheduler, 23)).outcome == "worker_lost"
        await until(lambda: scheduler.finished.get(WORKER))
        await scheduler.order(calls=[call(24, "nothing")])
        assert (await end_of(scheduler, 24)).error == "its worker is not on this node"
        await scheduler.order(worker(8))
        await ready(scheduler, 8)
        limited = call(30, "waits_without_looking", never, worker_lease_id=8, timeout_ms=200)
        await scheduler.order(calls=[limited])
        late = await end_of(scheduler, 30)
        assert late.outcome == "timeout"
        (end,) = await until(lambda: scheduler.finished.get(8))
        assert end.error == "a call ran 0.5 s beyond its limit of 0.2 s"


async def test_a_killed_agent_finds_its_workers_and_their_calls_again(tmp_path: Path) -> None:
    directory, gate = tmp_path / "agent", tmp_path / "gate"
    async with ScriptedScheduler() as scheduler:
        child = started_child(directory, scheduler)
        await scheduler.order(worker())
        await ready(scheduler)
        scheduler.acks = scheduler.stores = False  # as if it died before it had written them
        await scheduler.order(
            calls=[
                call(20, "add", 1, 2),
                call(24, "prints"),
                call(21, "waits_for", str(gate)),
                call(22, "nothing"),
            ]
        )
        await until(lambda: 20 in scheduler.returned)
        await until(lambda: 21 in scheduler.started)
        (pid,) = worker_pids(directory)
        child.kill()
        child.wait()
        scheduler.acks = scheduler.stores = True
        scheduler.returned.clear()
        scheduler.chunks.clear()
        async with agent(directory, scheduler):
            held = {lease.lease_id: lease for lease in scheduler.registrations[-1].leases}
            assert set(held) == {WORKER, 20, 21, 22, 24}
            assert (held[21].task_id, held[21].nonce, held[21].worker_lease_id) == (121, "x", WORKER)
            assert await value_of(scheduler, 20) == 3
            gate.touch()
            assert await value_of(scheduler, 21) == "seen"
            assert (await end_of(scheduler, 22)).outcome == "returned"
            sent = await until(lambda: scheduler.chunks.get(24))
            assert b"".join(chunk.data for chunk in sent).count(b"\n") == 4
            assert is_alive(pid)
            await scheduler.order(calls=[call(23, "nothing")])
            assert await value_of(scheduler, 23) is None
        assert not is_alive(pid)


async def test_a_python_without_dgpu_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    async with ScriptedScheduler() as scheduler, agent(tmp_path / "agent", scheduler):
        setup = WorkerSetup(app_id="app", python=str(python))
        await scheduler.order(start(WORKER, "unused", gpus=(GPU0,), worker=setup))
        (end,) = await until(lambda: scheduler.finished.get(WORKER))
        assert "Install dgpu in this environment: pip install dgpu" in end.error
