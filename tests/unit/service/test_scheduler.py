from __future__ import annotations

from typing import Any

import pytest

from dgpu.core.commands import Command, RunPass, Tick
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.core.model.wall_span import WallSpan
from dgpu.journal.journal import Room
from dgpu.service.machine import commit as pipeline
from dgpu.service.machine.inputs import HistoryAdvanced, RoomChanged, TimePassed
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import START, Bench, register, starts, submit

SPAN = WallSpan(boot_id="b1", boot_offset_ms=START, wall_offset_ms=0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[RunPass]:
    seen: list[RunPass] = []
    honest = pipeline.execute

    def execute(state: Any, command: Any) -> Any:
        seen.append(command)
        return honest(state, command)

    monkeypatch.setattr(pipeline, "execute", execute)
    return seen


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    seen: list[Command] = []
    honest = pipeline.decide

    def decide(state: Any, command: Any) -> Any:
        seen.append(command)
        return honest(state, command)

    monkeypatch.setattr(pipeline, "decide", decide)
    return seen


def test_a_submit_and_its_placement_share_one_record() -> None:
    bench = Bench()
    bench.say(1, register())
    records = len(bench.appended)
    bench.ask(submit())
    assert starts(bench.settle()) == [1]
    assert len(bench.appended) - records == 1


def test_an_idle_scheduler_writes_nothing() -> None:
    bench = Bench()
    records = len(bench.appended)
    bench.wait(60_000)
    assert len(bench.appended) == records


def test_there_is_a_full_pass_every_five_seconds_and_none_without_a_reason(passes: list[RunPass]) -> None:
    bench = Bench()
    bench.wait(20_000)
    assert [(one.at - START, one.full) for one in passes] == [
        (ms, True) for ms in (5_000, 10_000, 15_000, 20_000)
    ]


def test_every_second_brings_a_tick_with_what_the_history_holds(commands: list[Command]) -> None:
    bench = Bench()
    bench.put(HistoryAdvanced(at=77))
    bench.wait(3_000)
    ticks = [one for one in commands if isinstance(one, Tick)]
    assert [(tick.at - START, tick.history_at) for tick in ticks] == [(1_000, 77), (2_000, 77), (3_000, 77)]


def test_it_asks_to_be_woken_when_a_back_off_ends() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit())
    (lease,) = starts(bench.settle())
    bench.now += 400
    fault = pb.Finished(lease_id=lease, outcome="node_fault")
    bench.say(1, pb.FromAgent(reports=pb.Reports(seq=1, finished=[fault])))
    task = bench.state.tasks[TaskId(1)]
    assert (task.status, task.eligible_at) == (TaskStatus.PENDING, START + 1_400)
    bench.wait(600)
    assert bench.scheduler.wake_at() == START + 1_400
    bench.now = START + 1_399
    bench.put(TimePassed())
    assert starts(bench.settle()) == []
    bench.now = START + 1_400
    bench.put(TimePassed())
    assert starts(bench.settle()) == [lease + 1]


def test_an_allocation_ends_when_its_time_is_over_not_at_the_next_full_second() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.now += 300
    bench.run(submit(allocation=True))
    ends_at = START + 300 + 3_600_000
    bench.now = ends_at - 200
    bench.put(TimePassed())
    bench.settle()
    assert bench.scheduler.wake_at() == ends_at
    bench.now = ends_at
    bench.put(TimePassed())
    bench.settle()
    assert bench.state.tasks[TaskId(1)].reason == "time_over"


def test_a_pass_that_reaches_its_limit_goes_on_in_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MAX_PLACED", 3)
    bench = Bench()
    bench.say(1, register(gpus=8))
    records = len(bench.appended)
    bench.ask(submit(8))
    assert len(starts(bench.settle())) == 8
    assert len(bench.appended) - records == 3


def test_the_reserve_is_not_spent_on_placements() -> None:
    """It is for reports on what runs already."""
    bench = Bench()
    bench.run(submit())
    bench.put(RoomChanged(room=Room.RESERVE, sure_bytes=8 << 20))
    assert starts(bench.say(1, register())) == []
    assert starts(bench.wait(10_000, beating={1: 1})) == []
    bench.put(RoomChanged(room=Room.OK, sure_bytes=32 << 20))
    assert starts(bench.settle()) == [1]


def test_without_room_it_asks_to_be_woken_once_a_second_and_no_more_often() -> None:
    """What is due cannot be decided: asking at once again and again would take a whole CPU on a full disk."""
    bench = Bench()
    bench.put(RoomChanged(room=Room.NONE, sure_bytes=0))
    for _ in range(3):
        bench.now += 5_000
        bench.put(TimePassed())
        assert bench.scheduler.wake_at() == bench.now + 1_000


def test_after_an_accepted_loss_nothing_is_placed_until_lost_runs_are_frozen_also_by_the_next_scheduler() -> (
    None
):
    """A node may run a task under a lease that is lost. It freezes it when its own lease is over, not before."""
    bench = Bench(task_lease_ms=60_000, lease_margin_ms=5_000)
    bench.begin(lost_tail=True, wall=SPAN)
    bench.say(1, register())
    bench.ask(submit())
    assert not starts(bench.settle())
    assert not starts(bench.wait(30_000, beating={1: 1}))
    died_at = bench.now

    bench = Bench(bench.state, last_index=len(bench.appended), begins=False)
    bench.now = died_at
    bench.begin(wall=SPAN)
    bench.say(2, register(epoch=2))
    assert not starts(bench.wait(34_000, beating={2: 1}))
    assert len(starts(bench.wait(6_000, beating={2: 1}))) == 1
