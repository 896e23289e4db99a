"""The whole agent against a scripted scheduler: real gRPC, a real keeper, real processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dgpu.agent.epoch import Joined, JoinedFile
from dgpu.agent.host import AgentRunningError, serve_agent
from dgpu.agent.options import NodeOptions
from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.agent.probe.simulated import simulated_gpu_id
from dgpu.agent.retention import Limits
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb
from integration.agent import agent_child
from integration.agent.agent_child import options
from integration.agent.keeping import is_alive
from integration.agent.scheduling import ScriptedScheduler, start, until

pytestmark = pytest.mark.slow

GPU0 = simulated_gpu_id(NodeId("n1"), 0)
GPU1 = simulated_gpu_id(NodeId("n1"), 1)


@contextlib.asynccontextmanager
async def agent(directory: Path, scheduler: ScriptedScheduler, **facts: Any) -> AsyncIterator[asyncio.Event]:
    """Ends its tasks at the end, unless the test changes that."""
    stop = asyncio.Event()
    facts = {"stop_tasks": True, "grace_ms": 2_000} | facts
    serving = asyncio.create_task(serve_agent(options(directory, scheduler.port, **facts), stop=stop))
    try:
        await until(lambda: scheduler.registrations or serving.done())
        yield stop
    finally:
        stop.set()
        await serving


def keeper_pid(directory: Path) -> int:
    return json.loads((directory / "keeper.json").read_text())["pid"]


def started_child(directory: Path, scheduler: ScriptedScheduler) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, agent_child.__file__, str(directory), str(scheduler.port)])


async def test_a_task_runs_with_its_gpus_and_its_end_and_output_arrive(tmp_path) -> None:
    command = "touch left; echo $CUDA_VISIBLE_DEVICES $DGPU_TASK_ID $DGPU_ATTEMPT $DGPU_NODE $X; exit 3"
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        (register,) = scheduler.registrations
        assert [gpu.uuid for gpu in register.gpus] == [GPU0, GPU1]
        assert register.cpus_milli > 0
        assert register.ram_mb > 0
        await scheduler.order(start(1, command, gpus=(GPU1,), env={"X": "x y"}))
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert (finished.outcome, finished.exit_code) == ("exited", 3)
        assert 1 in scheduler.started
        chunks = await until(lambda: scheduler.chunks.get(1))
        assert b"".join(chunk.data for chunk in chunks) == f"{GPU1} task-101 1 n1 x y\n".encode()
        assert chunks[-1].last
        assert finished.output_bytes == len(chunks[0].data)
        # Stored and acknowledged: nothing is left of its output. What it made is kept.
        await until(lambda: not (tmp_path / "output" / "1").exists())
        assert register.work_dir == str(tmp_path / "tasks")
        assert (tmp_path / "tasks" / "task-101.1" / "left").exists()


async def test_a_task_without_gpus_sees_none(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(
            start(1, 'test -z "$CUDA_VISIBLE_DEVICES" && test "${CUDA_VISIBLE_DEVICES+set}" = set')
        )
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.exit_code == 0
        assert finished.output_bytes == 0


async def test_many_orders_in_one_message_all_run_once(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        orders = [start(lease, f"exit {lease % 7}") for lease in range(1, 101)]
        await scheduler.order(*orders)
        await scheduler.order(*orders)
        await until(lambda: len(scheduler.finished) == 100)
        assert {lease: ends[0].exit_code for lease, ends in scheduler.finished.items()} == {
            lease: lease % 7 for lease in range(1, 101)
        }


async def test_a_cancelled_task_ends_with_its_tree(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(
            start(1, f"(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' &); exec sleep 1000")
        )
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        await scheduler.order(stops=(1,))
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.outcome == "stopped"
        assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_killed_agent_is_replaced_and_adopts_what_runs(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler:
        child = started_child(tmp_path, scheduler)
        await scheduler.order(
            start(1, "while [ ! -e go ]; do sleep 0.05; done; exit 5", gpus=(GPU0,)), start(2, "exit 6")
        )
        await until(lambda: 1 in scheduler.started)
        scheduler.acks = False
        await until(lambda: scheduler.finished.get(2))
        child.kill()
        child.wait()
        (tmp_path / "tasks" / "task-101.1" / "go").touch()
        scheduler.finished.clear()
        scheduler.acks = True
        async with agent(tmp_path, scheduler):
            await until(lambda: len(scheduler.registrations) == 2)
            held = {lease.lease_id for lease in scheduler.registrations[1].leases}
            assert 1 in held
            (finished,) = await until(lambda: scheduler.finished.get(1))
            assert (finished.outcome, finished.exit_code) == ("exited", 5)
            assert scheduler.started[1].lease_id == 1


async def test_a_clean_stop_leaves_the_tasks_to_the_keeper(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler:
        async with agent(tmp_path, scheduler, stop_tasks=False):
            await scheduler.order(start(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
            await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        task = int((tmp_path / "pid").read_text())
        assert is_alive(task)
        beats = len(scheduler.heartbeats)
        async with agent(tmp_path, scheduler, stop_tasks=True):
            await until(lambda: len(scheduler.registrations) == 2)
            # It beats when it knows that it is registered; only then can it report.
            await until(lambda: len(scheduler.heartbeats) > beats)
            assert [lease.lease_id for lease in scheduler.registrations[1].leases] == [1]
        assert not is_alive(task)
        assert scheduler.finished[1][0].outcome == "stopped"


async def test_a_dead_keeper_is_replaced_and_its_tasks_are_reported_as_the_nodes_fault(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(start(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.outcome == "node_fault"
        assert not is_alive(int((tmp_path / "pid").read_text()))
        await scheduler.order(start(2, "exit 2"))
        (finished,) = await until(lambda: scheduler.finished.get(2))
        assert finished.exit_code == 2


async def test_a_restarted_scheduler_is_found_again_and_hears_what_it_missed(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(start(1, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 4"))
        await until(lambda: 1 in scheduler.started)
        await scheduler.close()
        (tmp_path / "go").touch()
        scheduler.epoch = 2
        await scheduler.open()
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.exit_code == 4
        assert scheduler.registrations[-1].highest_epoch == 1
        await until(lambda: JoinedFile(tmp_path).joined.epoch == 2)


async def test_a_lease_given_away_is_ended_without_a_report(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await scheduler.order(start(1, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        scheduler.give_up = {1}
        await scheduler.close()
        await scheduler.open()
        await until(lambda: not is_alive(int((tmp_path / "pid").read_text())))
        await scheduler.order(start(2, "exit 2"))
        await until(lambda: scheduler.finished.get(2))
        assert 1 not in scheduler.finished


async def test_running_output_is_followed_to_its_end(tmp_path) -> None:
    command = f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo two"
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        scheduler.stores = False
        await scheduler.order(start(1, command))
        await until(lambda: 1 in scheduler.started)
        await scheduler.fetch(7, 1, follow=True)
        chunks = await until(lambda: scheduler.answers.get(7))
        assert chunks[0].data == b"one\n"
        (tmp_path / "go").touch()
        await until(lambda: scheduler.answers[7][-1].last)
        assert b"".join(chunk.data for chunk in scheduler.answers[7]) == b"one\ntwo\n"
        await scheduler.fetch(8, 1, tail_bytes=4)
        await until(lambda: scheduler.answers.get(8) and scheduler.answers[8][-1].last)
        assert b"".join(chunk.data for chunk in scheduler.answers[8]) == b"two\n"
        await scheduler.fetch(9, 999)
        (chunk,) = await until(lambda: scheduler.answers.get(9))
        assert chunk.error
        assert chunk.last


async def test_heartbeats_carry_samples_of_every_gpu(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        beat = await until(lambda: scheduler.heartbeats and scheduler.heartbeats[-1])
        assert [sample.uuid for sample in beat.samples] == [GPU0, GPU1]
        assert all(sample.temperature_c > 0 for sample in beat.samples)


async def test_a_second_agent_on_the_same_directory_is_refused(tmp_path) -> None:
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        with pytest.raises(AgentRunningError, match="another agent uses"):
            await serve_agent(options(tmp_path, scheduler.port), stop=asyncio.Event())


async def test_one_process_hosts_many_simulated_nodes_that_run_nothing(tmp_path) -> None:
    nodes = tuple(
        NodeOptions(
            id=NodeId(f"n{number}"),
            detection_method=DetectionMethod.SIMULATED,
            simulated=(SimulatedCards(model="V100", count=1),),
            cpus_milli=4_000,
            ram_mb=1_000,
        )
        for number in range(5)
    )
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler, nodes=nodes, runner="null"):
        await until(lambda: len(scheduler.registrations) == 5)
        assert {register.node_id for register in scheduler.registrations} == {node.id for node in nodes}
        assert {register.cpus_milli for register in scheduler.registrations} == {4_000}
        await scheduler.order(*(start(lease, "ignored") for lease in range(1, 21)))
        await until(lambda: len(scheduler.finished) == 20)
        assert {ends[0].outcome for ends in scheduler.finished.values()} == {"exited"}
        assert not (tmp_path / "keeper.json").exists()


async def test_a_scheduler_of_an_older_epoch_is_not_obeyed(tmp_path) -> None:
    (tmp_path / "epoch").write_text("9\n")
    async with ScriptedScheduler(epoch=8) as scheduler, agent(tmp_path, scheduler):
        await until(lambda: len(scheduler.registrations) >= 2)
        assert scheduler.registrations[0].highest_epoch == 9
        with contextlib.suppress(Exception):
            await scheduler.say(pb.FromScheduler(orders=pb.Orders(starts=[start(1, "true")])))
        scheduler.epoch = 9
        await until(lambda: scheduler.heartbeats)
        assert scheduler.started == {}


async def test_an_epoch_that_finds_no_room_on_disk_is_tried_again(tmp_path, monkeypatch) -> None:
    """A full disk must not leave a node out for ever, and without the record nothing is obeyed."""
    save = JoinedFile.save
    tries: list[int] = []

    def save_later(self: JoinedFile, joined: Joined) -> None:
        tries.append(joined.epoch)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, joined)

    monkeypatch.setattr(JoinedFile, "save", save_later)
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler, retry_ms=10):
        await until(lambda: len(scheduler.registrations) == 3 and scheduler.heartbeats)
        await scheduler.order(start(1, "exit 4"))
        (finished,) = await until(lambda: scheduler.finished.get(1))
        assert finished.exit_code == 4


async def test_a_directory_that_could_not_be_deleted_does_not_keep_an_agent_from_starting(tmp_path) -> None:
    for name in ("5", "5.old"):
        (tmp_path / "output" / name).mkdir(parents=True)
        (tmp_path / "output" / name / "file").touch()
    async with ScriptedScheduler() as scheduler, agent(tmp_path, scheduler):
        await until(lambda: not (tmp_path / "output" / "5.old").exists())
        assert scheduler.registrations


async def test_directories_of_ended_tasks_go_by_the_rules_also_after_a_kill(tmp_path, monkeypatch) -> None:
    """Empty ones at once, others by size and the oldest first; that of a running task never."""
    monkeypatch.setattr("dgpu.agent.housework.SWEEP_SECONDS", 0.05)
    tasks = tmp_path / "tasks"

    def left() -> set[str]:
        return {entry.name for entry in tasks.iterdir() if entry.name.startswith("task-")}

    async with ScriptedScheduler() as scheduler:
        child = started_child(tmp_path, scheduler)
        fill = "head -c 200000 /dev/zero > checkpoint"
        wait = "while [ ! -e go ]; do sleep 0.05; done"
        await scheduler.order(start(1, f"{fill}; {wait}", gpus=(GPU0,)), start(2, "true"))
        await until(lambda: 1 in scheduler.started and scheduler.finished.get(2))
        await scheduler.order(start(3, fill))
        await until(lambda: scheduler.finished.get(3))
        child.kill()
        child.wait()
        async with agent(tmp_path, scheduler, workdir_limits=Limits(max_age_ms=0, max_bytes=500_000)):
            await until(lambda: len(scheduler.registrations) == 2)
            await until(lambda: left() == {"task-101.1", "task-103.1"})
            await scheduler.order(start(4, fill), start(5, fill))
            await until(lambda: scheduler.finished.get(4) and scheduler.finished.get(5))
            await until(lambda: "task-103.1" not in left() and len(left()) == 3)
            (tasks / "task-101.1" / "go").touch()
            (finished,) = await until(lambda: scheduler.finished.get(1))
            assert finished.exit_code == 0
            # Three directories were too much: of the two that had ended before, the older one went.
            await until(lambda: len(left()) == 2 and "task-101.1" in left())
            await until(lambda: list((tasks / ".trash").iterdir()) == [])
