"""Calls of a worker, without a process."""

from __future__ import annotations

import pytest

from dgpu.worker import frames
from dgpu.worker.desk import MAX_CALLS, Desk


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[frames.ToAgent] = []
        self.wakes = 0
        self.desk = Desk(send=self.sent.append, wake=self.wake, clock=lambda: self.now)

    def wake(self) -> None:
        self.wakes += 1

    def call(self, lease: int, **fields) -> None:
        self.desk.receive(frames.Call(lease=lease, entrypoint="m:f", **fields))

    def held(self) -> list[tuple[int, str]]:
        return [(call.lease, call.state) for call in self.desk.held()]


@pytest.fixture
def world() -> World:
    return World()


def done(lease: int) -> frames.Done:
    return frames.Done(lease=lease, outcome="returned")


def test_calls_begin_in_order_and_are_kept_until_taken(world: World) -> None:
    world.call(1, task_id=7, attempt=2, nonce="n", cluster="c")
    world.call(2)
    call, _ = world.desk.begin()
    assert call.lease == 1
    assert world.held() == [(1, "running"), (2, "queued")]
    world.desk.finish(done(1))
    assert world.held() == [(1, "done"), (2, "queued")]
    first = world.desk.held()[0]
    assert (first.task_id, first.attempt, first.nonce, first.cluster) == (7, 2, "n", "c")
    world.desk.receive(frames.Taken(leases=(1, 99)))
    assert world.held() == [(2, "queued")]
    assert world.sent == [done(1)]


def test_a_call_that_is_known_is_not_run_again(world: World) -> None:
    """An agent that has lost its memory sends it once more."""
    world.call(1)
    world.call(1)
    world.desk.begin()
    world.call(1)
    world.desk.finish(done(1))
    world.call(1)
    assert world.held() == [(1, "done")]
    assert world.desk.begin() is None


def test_a_short_call_is_reported_by_its_end_alone(world: World) -> None:
    world.call(1)
    world.desk.begin()
    world.desk.tick()
    world.desk.finish(done(1))
    world.call(2)
    world.desk.begin()
    assert world.desk.seconds_to_next_tick() == pytest.approx(0.02)
    world.now += 0.03
    world.desk.tick()
    world.desk.tick()
    assert world.sent == [done(1), frames.Started(lease=2)]


def test_progress_is_sent_at_most_twice_a_second_and_the_newest_wins(world: World) -> None:
    world.call(1)
    _, running = world.desk.begin()
    for permille in (100, 200, 300):
        running.newest = (permille, "")
        running.on_progress()
    assert world.sent == [frames.Progress(lease=1, permille=100)]
    world.now += 0.6
    world.desk.tick()
    assert world.sent[-1] == frames.Progress(lease=1, permille=300)
    assert world.wakes == 3


def test_the_time_of_a_call_ends(world: World) -> None:
    world.call(1, timeout_ms=5_000)
    _, running = world.desk.begin()
    world.now += 1
    world.desk.tick()
    assert (running.stop, world.desk.seconds_to_next_tick()) == ("", pytest.approx(4.0))
    world.now += 4
    world.desk.tick()
    assert running.stop == "timeout"
    world.desk.receive(frames.Cancel(lease=1))
    assert running.stop == "timeout", "the first reason stays"


def test_leaving_drops_waiting_calls_and_takes_no_new_ones(world: World) -> None:
    world.call(1)
    _, running = world.desk.begin()
    world.call(2)
    world.desk.receive(frames.Leave())
    world.call(3)
    assert world.held() == [(1, "running")]
    assert running.stop == "cancelled"


def test_the_number_of_waiting_calls_is_bounded(world: World) -> None:
    for lease in range(MAX_CALLS):
        world.call(lease)
    with pytest.raises(frames.FrameError, match="more than 1024 calls"):
        world.call(MAX_CALLS)


def test_a_call_is_taken_back_only_if_it_has_not_begun(world: World) -> None:
    world.call(1)
    world.call(2)
    _, running = world.desk.begin()
    for lease in (1, 2):
        world.desk.receive(frames.Cancel(lease=lease, queued=True))
    assert running.stop == ""
    assert world.sent == [frames.Done(lease=2, outcome="cancelled", error="taken back before it began")]
