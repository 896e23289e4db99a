"""Borrowed GPUs go back: the agent is told to stop, its report requeues the task, the owner starts."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.commands import SetQuota, SubmitTasks
from dgpu.core.model.quota import Reclaim
from dgpu.core.model.task import Pool, TaskStatus
from dgpu.wire.proto import agent_pb2 as pb

from .cluster import Bench, heartbeat, register, reports, spec, starts, stops, submit


def stopped(lease_id: int) -> pb.FromAgent:
    finished = pb.Finished(lease_id=lease_id, outcome="stopped", signal=15)
    return pb.FromAgent(reports=pb.Reports(seq=2, finished=[finished]))


def online(gpus: int = 1) -> SubmitTasks:
    wanted = spec(gpus=gpus)
    return SubmitTasks(entries=((1, replace(wanted, shape=replace(wanted.shape, pool=Pool.ONLINE))),))


def test_the_agent_is_told_to_stop_once_and_again_after_a_reconnect() -> None:
    bench = Bench()
    bench.run(SetQuota(online_ppm=500_000, reclaim=Reclaim.STOP))
    bench.say(1, register(gpus=2))
    bench.run(submit(2))
    bench.say(1, reports(started=(1, 2)))
    bench.ask(online())
    outputs = bench.settle()
    (lease_id,) = stops(outputs)
    assert not starts(outputs)
    assert stops(bench.wait(6_000, beating={1: 1})) == [], "asked once"
    bench.leave(1)
    again = bench.say(2, register(gpus=2, held=(1, 2), epoch=1))
    assert stops(again) == [lease_id]
    given = bench.say(2, stopped(lease_id))
    assert starts(given) == [3]
    waiting = [task for task in bench.state.tasks.values() if task.status is TaskStatus.PENDING]
    assert [(task.retries, task.reason) for task in waiting] == [(0, "reclaimed")]
    bench.say(2, heartbeat())
    assert stops(bench.wait(6_000, beating={2: 1})) == []
