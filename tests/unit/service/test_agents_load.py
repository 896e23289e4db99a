from __future__ import annotations

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.journal.journal import Room
from dgpu.service.machine import commit_queue
from dgpu.service.machine.inputs import AgentSaid, RoomChanged
from unit.service.cluster import (
    Bench,
    heartbeat,
    hung_up,
    register,
    reports,
    starts,
    submit,
    told,
)

N1 = NodeId("n1")


def running(bench: Bench, connection: int = 1) -> int:
    """A task that runs on n1. Returns its lease."""
    bench.say(connection, register())
    bench.ask(submit())
    (lease,) = starts(bench.settle())
    bench.say(connection, reports(started=(lease,)))
    return lease


def test_without_room_the_words_of_agents_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may be full for days. What is said again anyway need not be kept, and who registers can come back."""
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 10)
    bench = Bench()
    bench.say(1, register())
    bench.put(RoomChanged(room=Room.NONE, sure_bytes=0))
    for beat in range(20):
        bench.now += 5_000
        bench.say(
            1, heartbeat(beat, GPU_n1_0={"memory_foreign_mb": 512}, GPU_n1_1={"memory_foreign_mb": 512})
        )
    outputs = [output for number in range(2, 22) for output in bench.say(number, register(f"n{number}"))]
    assert bench.scheduler.queued <= 10
    assert {reason for _, reason in hung_up(outputs)} == {"too many commands wait to be decided; try again"}
    bench.put(RoomChanged(room=Room.OK, sure_bytes=32 << 20))
    bench.settle()
    assert told(bench.say(40, register("n40")))[0].WhichOneof("body") == "welcome"


def test_an_acknowledgement_travels_with_the_order_that_follows_the_end() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    bench.ask(submit(2))
    (first,) = starts(bench.settle())
    (message,) = told(bench.say(1, reports(5, started=(first,), finished=(first,))))
    assert message.orders.reports_ack == 5
    assert [start.task_id for start in message.orders.starts] == [2]


def test_an_acknowledgement_goes_to_the_node_that_reported() -> None:
    bench = Bench()
    bench.say(1, register("n1", gpus=1))
    bench.say(2, register("n2", gpus=0))
    bench.ask(submit(2))
    (first,) = starts(bench.settle())
    bench.put(AgentSaid(connection_id=2, message=reports(9)))
    outputs = bench.say(1, reports(5, finished=(first,)))
    assert [message.orders.reports_ack for message in told(outputs, 1)] == [5]
    assert [message.reports_ack.seq for message in told(outputs, 2)] == [9]
