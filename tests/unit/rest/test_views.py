"""Numbers and lists that follow the journal must equal what counting the state anew gives."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dgpu.core.apply.table import apply
from dgpu.core.commands import CancelTasks, Command, RegisterNode, ReportFinished, RunPass, SubmitTasks, Tick
from dgpu.core.decide.table import decide
from dgpu.core.execute import execute
from dgpu.core.model.ids import GpuId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, Shape, TaskSpec, TaskStatus
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.views import Filter, Views


class Follower:
    """A state and its views, told of every group."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.settings = Settings(keep_finished=5)
        self.views = Views(self.state)
        self.index = 0
        self.at = 0

    def do(self, command: Command) -> None:
        self.at += 1
        command = type(command)(
            **{**{f: getattr(command, f) for f in command.__struct_fields__}, "at": self.at}
        )
        if isinstance(command, RunPass):
            events = execute(self.state, command)
        else:
            events = decide(self.state, command)
            if not isinstance(events, Rejection):
                for event in events:
                    apply(self.state, event)
        if isinstance(events, Rejection) or not events:
            return
        self.index += 1
        self.views.on_group(CommittedGroup(index=self.index, events=tuple(events)))


def spec(tenant: str = "a", priority: int = 50) -> TaskSpec:
    shape = Shape(tenant_id=TenantId(tenant), pool=Pool.BATCH, priority=priority, gpus=1)
    return TaskSpec(shape=shape, detail=b'{"command":"true"}')


def node(gpus: int) -> RegisterNode:
    cards = tuple(
        Gpu(id=GpuId(f"G{i}"), node_id=NodeId("n"), index=i, model="m", memory_mb=1) for i in range(gpus)
    )
    return RegisterNode(node_id=NodeId("n"), boot_id="b", cpus_milli=1000, ram_mb=1000, gpus=cards)


def counted_anew(state: ClusterState) -> Counter[tuple[str, int, TaskStatus]]:
    return Counter(
        (state.shapes[task.shape_id].tenant_id, state.shapes[task.shape_id].priority, task.status)
        for task in state.tasks.values()
    )


@pytest.mark.parametrize("seed", range(30))
def test_numbers_and_order_equal_those_counted_anew(seed) -> None:
    print(f"seed {seed}")
    choose = random.Random(seed)
    world = Follower()
    world.do(node(3))
    for _ in range(120):
        act = choose.random()
        if act < 0.35:
            entries = tuple(
                (choose.randint(1, 4), spec(choose.choice("ab"), choose.choice([10, 90]))) for _ in range(2)
            )
            world.do(SubmitTasks(entries=entries))
        elif act < 0.6:
            world.do(RunPass())
        elif act < 0.85 and world.state.leases:
            outcome = choose.choice([Outcome.EXITED, Outcome.NODE_FAULT, Outcome.SIGNALED])
            world.do(ReportFinished(lease_id=choose.choice(sorted(world.state.leases)), outcome=outcome))
        elif act < 0.95 and world.state.tasks:
            world.do(CancelTasks(task_ids=(choose.choice(sorted(world.state.tasks)),)))
        else:
            world.do(Tick(history_at=world.at))
        anew = counted_anew(world.state)
        views = world.views
        assert views.live_total(Filter()) == len(world.state.tasks)
        for status in TaskStatus:
            for tenant in "ab":
                wanted = Filter(status=status, tenant=tenant)
                expected = sum(n for (t, _, s), n in anew.items() if t == tenant and s is status)
                assert views.live_total(wanted) == expected
                assert len(views.newest(wanted, None, 10_000)) == expected
        ids = [task.id for task in views.newest(Filter(), None, 10_000)]
        assert ids == sorted(world.state.tasks, reverse=True)
    rebuilt = Views(world.state, world.index)
    for status in TaskStatus:
        assert rebuilt.live_total(Filter(status=status)) == world.views.live_total(Filter(status=status))
    assert rebuilt.highest_forgotten >= world.views.highest_forgotten


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    world = Follower()
    world.do(SubmitTasks(entries=((250, spec()), (250, spec("b")))))
    seen: list[int] = []
    before = None
    while page := world.views.newest(Filter(), before, 37):
        seen += [task.id for task in page]
        before = seen[-1]
    assert seen == list(range(500, 0, -1))


def test_what_was_forgotten_is_remembered_until_the_history_has_marked_it() -> None:
    world = Follower()
    world.do(SubmitTasks(entries=((10, spec()),)))
    world.do(CancelTasks(task_ids=tuple(TaskId(i) for i in range(1, 11))))
    before = world.index
    world.do(Tick(history_at=world.at))
    gone = world.views.forgotten_after(before, Filter())
    assert [each.task_id for each in gone] == [1, 2, 3, 4, 5]
    assert world.views.highest_forgotten == 5
    assert world.views.forgotten_after(before, Filter(status=TaskStatus.SUCCESS)) == []
    assert world.views.forgotten_after(world.index, Filter()) == []


def test_recent_groups_are_found_by_index_until_they_are_too_old(monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.views.views.MAX_RECENT_GROUPS", 4)
    world = Follower()
    for _ in range(6):
        world.do(SubmitTasks(entries=((1, spec()),)))
    views = world.views
    assert [group.index for group in views.recent_after(4) or []] == [5, 6]
    assert views.recent_after(6) == []
    assert views.recent_after(2) is not None
    assert views.recent_after(1) is None
