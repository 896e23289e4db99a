"""Any sequence of commands again, with gangs, arrays, dependencies, held tasks, begin times, changes of priority, and ageing."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from building import START, finished, on, returning, spec, task
from building.examples import fixed_and_random
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    ChangePriority,
    HoldTasks,
    ReadWallClock,
    ReleaseTasks,
    SubmitTasks,
)
from dgpu.core.model.dependencies import When
from dgpu.core.model.task import Outcome, Restart, TaskStatus
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.rejections import TaskNotWaiting
from property.test_core_machine import RULES, Cluster

lives = {
    "priority": st.sampled_from([10, 50, 90]),
    "tenant": st.sampled_from(["a", "b"]),
    "timeout_ms": st.sampled_from([1_000, 20_000]),
    "max_retries": st.sampled_from([0, 1]),
    "restart": st.sampled_from([Restart.NEVER, Restart.NEVER, Restart.ON_FAILURE, Restart.ALWAYS]),
    "allocation": st.sampled_from([False, False, False, False, True]),
    "held": st.sampled_from([False, False, False, True]),
    "begins_ms": st.sampled_from([0, 0, 0, START + 200, START + 6_000]),
}


class Lives(Cluster):
    @rule(
        count=st.integers(1, 2),
        wanted=st.builds(
            spec,
            st.sampled_from([0, 1, 1, 2]),
            nodes=st.sampled_from([2, 2, 3]),
            cpus=st.sampled_from([0, 1]),
            **lives,
        ),
    )
    def submit_gang(self, count: int, wanted: Any) -> None:
        self.send(SubmitTasks(at=self.at, entries=((count, wanted),)))
        self.pass_runs(1_000, full=False)

    @rule(
        wanted=st.builds(
            task,
            st.sampled_from([0, 1]),
            array=st.sampled_from(["0-3%1", "1,5,9%2", "0-2", "7"]),
            nodes=st.sampled_from([1, 1, 2]),
            **lives,
        )
    )
    def submit_array(self, wanted: SubmitTasks) -> None:
        self.send(replace(wanted, at=self.at))
        self.pass_runs(1_000, full=False)

    @precondition(lambda self: self.state.next_task_id > 1)
    @rule(data=st.data(), number=st.integers(1, 3), count=st.integers(1, 2), held=st.integers(0, 4))
    def submit_after(self, data: st.DataObject, number: int, count: int, held: int) -> None:
        ids = st.integers(1, self.state.next_task_id)
        after = {
            data.draw(ids): data.draw(st.sampled_from([each.value for each in When])) for _ in range(number)
        }
        edges = tuple(sorted(on(task_id, when) for task_id, when in after.items()))
        self.send(SubmitTasks(at=self.at, entries=((count, spec(0, after=edges, held=held == 0)),)))

    @precondition(lambda self: self.state.tasks)
    @rule(data=st.data(), priority=st.sampled_from([10, 50, 60, 90]), what=st.integers(0, 2))
    def change_some(self, data: st.DataObject, priority: int, what: int) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.state.tasks)))
        known = self.state.tasks[task_id]
        kinds: tuple[Any, ...] = (HoldTasks, ReleaseTasks, ChangePriority)
        more = {"priority": priority} if what == 2 else {}
        decision = self.send(kinds[what](at=self.at, task_ids=(task_id,), **more))
        waits = known.status is TaskStatus.PENDING
        assert waits or decision == TaskNotWaiting(task_id=task_id, status=known.status.value)

    @precondition(lambda self: any(each.array_id for each in self.state.tasks.values()))
    @rule(data=st.data(), what=st.integers(0, 3))
    def change_array(self, data: st.DataObject, what: int) -> None:
        arrays = sorted({each.array_id for each in self.state.tasks.values()} - {0})
        array_id = data.draw(st.sampled_from(arrays))
        kinds: tuple[Any, ...] = (HoldTasks, ReleaseTasks, ChangePriority, CancelTasks)
        more = {"priority": 60} if what == 2 else {}
        self.send(kinds[what](at=self.at, array_id=array_id, **more))

    @precondition(lambda self: self.state.gangs)
    @rule(data=st.data(), exit_code=st.sampled_from([0, 0, 1]))
    def a_gang_comes_to_its_end(self, data: st.DataObject, exit_code: int) -> None:
        """Its ranks report one after the other, those that were told to stop as stopped."""
        task_id = data.draw(st.sampled_from(sorted(self.state.gangs)))
        if self.state.tasks[task_id].allocation:
            return
        for lease_id in self.state.gangs[task_id].leases:
            lease = self.state.leases.get(lease_id)
            if lease is not None and not lease.ended:
                outcome = Outcome.STOPPED if lease.stopping else Outcome.EXITED
                self.send(finished(lease_id, exit_code, outcome=outcome, at=self.at))
        assert task_id not in self.state.gangs
        self.pass_runs(1_000, full=False)

    @rule(offset_ms=st.sampled_from([0, -3_000, 4_000]), boot_id=st.sampled_from(["b1", "b2"]))
    def clock_is_set(self, offset_ms: int, boot_id: str) -> None:
        """Begin times move with it."""
        span = WallSpan(boot_id=boot_id, boot_offset_ms=0, wall_offset_ms=offset_ms)
        self.send(ReadWallClock(at=self.at, span=span))

    @rule(minutes=st.sampled_from([0, 1_000, 3_000]))
    def ageing_changes(self, minutes: int) -> None:
        self.rules = replace(RULES, ageing_ms=minutes)
        self.send(BeginEpoch(at=self.at, settings=self.rules))
        for command in returning(self.state):
            self.send(replace(command, at=self.at))


TestLives, TestLivesAtRandom = fixed_and_random(Lives, examples=100, steps=40)
