"""Tenants take turns in front of the journal."""

from __future__ import annotations

import pytest

from dgpu.core.commands import CancelTasks, Tick
from dgpu.core.model.ids import TaskId
from dgpu.core.rejections import TooBusy
from dgpu.core.state import ClusterState
from dgpu.service.machine import commit, commit_queue
from dgpu.service.machine.commit import CommitPipeline
from dgpu.service.machine.commit_queue import CommitQueue, Entry
from dgpu.service.machine.inputs import Execute
from dgpu.service.machine.outputs import Reply
from unit.service.cluster import Bench, submit

NOW = 1_000_000


def queue_of(**counts: int) -> CommitQueue:
    """Requests of each lane, with the origins 0, 1, ... in the order of the arguments."""
    queue = CommitQueue()
    origin = 0
    for lane, count in counts.items():
        for _ in range(count):
            queue.put(Entry(origin, None, 100, lane))
            origin += 1
    return queue


def taken(queue: CommitQueue, now: int = NOW) -> list[str]:
    """The lanes of one group, in order."""
    queue.begin_group(now)
    lanes = []
    while queue.first() is not None:
        lanes.append(queue.take().lane)
    return lanes


def test_lanes_take_turns() -> None:
    assert taken(queue_of(a=3, b=2, c=2)) == ["a", "b", "c", "a", "b", "c", "a"]


def test_the_requests_of_a_lane_keep_their_order() -> None:
    queue = queue_of(a=3, b=3)
    queue.begin_group(NOW)
    origins = [queue.take().origin for _ in range(6)]
    assert origins == [0, 3, 1, 4, 2, 5]


def test_a_lane_that_is_alone_fills_whole_groups() -> None:
    """Large groups give the highest rate; only another tenant would notice their length."""
    assert len(taken(queue_of(a=500))) == 500


def test_a_group_takes_few_commands_of_each_lane_while_a_calm_one_is_active() -> None:
    queue = queue_of(a=20, b=1)
    assert taken(queue).count("a") == commit_queue.CALM_SHARE
    # The flood goes on, and the calm tenant has nothing queued at this moment. Its next request must not meet a long
    # group.
    assert taken(queue, NOW + commit_queue.ACTIVE_MS - 1) == ["a"] * commit_queue.CALM_SHARE
    assert len(taken(queue, NOW + commit_queue.ACTIVE_MS)) == 20 - 2 * commit_queue.CALM_SHARE
    assert len(queue) == 0


def test_lanes_that_all_have_a_crowd_share_longer_groups() -> None:
    """Each of their commands waits for many of its own tenant anyway. Long groups raise the rate of all."""
    lanes = taken(queue_of(a=20, b=20))
    assert lanes.count("a") == lanes.count("b") == commit_queue.CROWD_SHARE > commit_queue.CALM_SHARE


def large(origin: int, lane: str) -> Entry:
    return Entry(origin, None, commit_queue.LARGE_BYTES + 1, lane)


def test_a_large_command_has_a_group_of_its_own() -> None:
    """Others would be answered after its long decision. It waits for one group, however many small ones come."""
    queue = queue_of(a=6, b=1)
    for origin in (10, 11):
        queue.put(large(origin, "batch"))
    assert taken(queue) == ["a", "b", "a"]
    assert taken(queue) == ["batch"]
    assert taken(queue) == ["a", "a"]
    assert taken(queue) == ["batch"]
    assert taken(queue) == ["a", "a"]


def test_reports_of_agents_join_the_group_of_a_large_command() -> None:
    queue = queue_of(a=1)
    for number in range(3):
        queue.put(Entry(None, Tick(history_at=number), 100))
    queue.put(large(10, "batch"))
    queue.put(large(11, "batch"))
    assert taken(queue) == ["", "a", "", ""]
    queue.put(Entry(None, Tick(history_at=4), 100))
    assert taken(queue) == ["batch", ""]


def test_large_commands_of_a_lane_that_is_alone_share_a_group() -> None:
    queue = queue_of(a=2)
    queue.put(large(10, "a"))
    queue.put(large(11, "a"))
    assert taken(queue) == ["a"] * 4


def test_a_lane_that_had_its_share_goes_on_in_the_next_group() -> None:
    queue = queue_of(a=10, b=10)
    groups = [taken(queue), taken(queue)]
    share = commit_queue.CROWD_SHARE
    assert [len(group) for group in groups] == [2 * share, 20 - 2 * share]


def test_reports_of_agents_have_every_second_place() -> None:
    """A report frees GPUs. It must not wait behind a flood of submits, nor keep all submits out."""
    queue = queue_of(a=4)
    for number in range(3):
        queue.put(Entry(None, Tick(history_at=number), 100))
    assert taken(queue) == ["", "a", "", "a", "", "a", "a"]


def test_a_lane_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 12)
    queue = queue_of(a=6)
    assert not queue.lane_has_room_for("a", 100)
    assert queue.lane_has_room_for("b", 100)
    for origin in range(3):
        queue.put(Entry(origin, None, 100, "b"))
    assert not queue.lane_has_room_for("b", 100)
    assert queue.lane_has_room_for("c", 100)


def test_a_lane_leaves_room_for_the_bytes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_QUEUED_BYTES", 1_000)
    queue = queue_of(a=5)
    assert not queue.lane_has_room_for("a", 1)
    assert queue.lane_has_room_for("b", 500)
    assert not queue.lane_has_room_for("b", 501)


def test_a_lane_that_rests_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two groups of a flood, its tenant gets no second share of the queue."""
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 40)
    queue = queue_of(a=20, b=1)
    taken(queue)
    left = 20 - commit_queue.CALM_SHARE
    assert [queue.lane_has_room_for("a", 100), len(queue)] == [True, left]
    for origin in range(20 - left):
        queue.put(Entry(origin, None, 100, "a"))
    assert not queue.lane_has_room_for("a", 100)


def test_commands_that_were_not_stored_come_first_again() -> None:
    queue = CommitQueue()
    for number in range(3):
        queue.put(Entry(None, Tick(history_at=number), 100))
    queue.begin_group(NOW)
    first = [queue.take(), queue.take()]
    queue.put_back(first)
    queue.begin_group(NOW)
    assert [queue.take().command.history_at for _ in range(3)] == [0, 1, 2]


def test_dropped_requests_leave_the_commands_of_agents() -> None:
    queue = queue_of(a=20, b=1)
    queue.put(Entry(None, Tick(history_at=7), 100))
    taken(queue)  # the rest of lane a waits
    queue.put(Entry(None, Tick(history_at=8), 100))
    assert sorted(queue.drop_requests()) == list(range(commit_queue.CALM_SHARE, 20))
    assert [len(queue), queue.has_room_for(commit_queue.MAX_QUEUED_BYTES - 100)] == [1, True]
    assert queue.first().command == Tick(history_at=8)


def test_a_submit_of_another_tenant_is_in_the_next_group_of_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same promise in the whole machine, with a group that is too small for the flood."""
    monkeypatch.setattr(commit, "MAX_GROUP_COMMANDS", 10)
    commits = CommitPipeline(ClusterState(), 0)
    for origin in range(100):
        commits.offer(origin, submit(tenant_id="flood"))
    commits.offer(1_000, submit(tenant_id="calm"))
    group = commits.decide(NOW)
    assert 1_000 in {origin for origin, _ in group.results}


def test_a_flood_turns_only_its_own_tenant_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 10)
    bench = Bench()
    for _ in range(5):
        bench.ask(submit(tenant_id="flood"))
    assert bench.put(Execute(request_id=90, command=submit(tenant_id="flood"))) == [
        Reply(request_id=90, result=TooBusy(queued=5))
    ]
    assert bench.put(Execute(request_id=91, command=submit(tenant_id="calm"))) == []


def test_a_change_of_a_task_waits_in_the_lane_of_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of cancels is a flood, too."""
    bench = Bench()
    bench.run(submit(tenant_id="flood"))
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 4)
    for number in (1, 2):
        bench.put(Execute(request_id=number, command=submit(tenant_id="flood")))
    (reply,) = bench.put(Execute(request_id=3, command=CancelTasks(task_ids=(TaskId(1),))))
    assert isinstance(reply.result, TooBusy)
    (reply,) = bench.put(Execute(request_id=4, command=CancelTasks(tenant_id="flood")))
    assert isinstance(reply.result, TooBusy)
    assert bench.put(Execute(request_id=5, command=CancelTasks(tenant_id="calm"))) == []


def test_the_next_group_awaits_a_calm_lane_that_was_just_served() -> None:
    """Its client sends the next command right after the answer, and would else wait for a group of the flood."""
    queue = queue_of(a=20, b=1)
    assert not queue.awaits_calm, "no group yet"
    assert "b" in taken(queue)
    assert queue.awaits_calm
    queue.put(Entry(100, None, 100, "b"))
    assert not queue.awaits_calm, "it is here"


@pytest.mark.parametrize(
    "lanes",
    [
        pytest.param({"a": 1}, id="nothing waits"),
        pytest.param({"a": 1_500}, id="a tenant that is alone"),
        pytest.param({"a": 20, "b": 20}, id="two crowds"),
        pytest.param({"a": 20, "b": 1, "c": 3}, id="another calm lane waits"),
    ],
)
def test_other_groups_do_not_wait(lanes) -> None:
    queue = queue_of(**lanes)
    queue.begin_group(NOW)
    for _ in range(min(1_000, len(queue))):
        if queue.first() is not None:
            queue.take()
    assert not queue.awaits_calm


def test_a_group_with_a_crowd_alone_is_followed_at_once() -> None:
    """A calm tenant delays a flood by one short wait for each of its commands, not for ever."""
    queue = queue_of(a=20, b=1)
    taken(queue)
    assert set(taken(queue)) == {"a"}
    assert not queue.awaits_calm


def test_reports_of_agents_do_not_wait_for_a_calm_lane() -> None:
    queue = queue_of(a=20, b=1)
    taken(queue)
    queue.put(Entry("agent", None, 100))
    assert not queue.awaits_calm


def test_a_due_pass_does_not_wait_for_a_calm_lane() -> None:
    commits = CommitPipeline(ClusterState(), 0)
    for origin, tenant in enumerate("aaaaab"):
        commits.offer(origin, submit(tenant_id=tenant))
    group = commits.decide(NOW)
    commits.commit(group.index)
    assert commits.awaits_calm
    commits.ask_for_pass(full=False)
    assert not commits.awaits_calm
