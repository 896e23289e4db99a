"""Finished tasks leave the memory as fast as they come."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.commands import CancelTasks
from dgpu.core.events import TasksForgotten
from dgpu.core.rejections import HistoryBehind
from dgpu.service.machine.inputs import HistoryAdvanced, TimePassed
from dgpu.service.machine.outputs import Publish
from unit.service.cluster import Bench, submit

KEPT = 10_000


def test_finished_tasks_are_forgotten_at_any_rate() -> None:
    """A fixed number per second lets the memory grow under a higher rate of tasks."""
    bench = Bench()
    for _ in range(3):
        bench.run(submit(count=10_000))
    bench.run(CancelTasks())
    bench.put(HistoryAdvanced(at=bench.now))
    bench.now += 1_000
    outputs = [*bench.put(TimePassed()), *bench.settle()]
    assert len(bench.state.tasks) == KEPT
    portions = [
        len(event.task_ids)
        for output in outputs
        if isinstance(output, Publish)
        for event in output.group.events
        if isinstance(event, TasksForgotten)
    ]
    assert sum(portions) == 20_000
    assert max(portions) == 1_000


def test_tasks_that_the_history_lacks_are_kept() -> None:
    bench = Bench()
    bench.run(submit(count=KEPT + 5_000))
    bench.put(HistoryAdvanced(at=bench.now))
    bench.now += 500
    bench.run(CancelTasks())
    bench.wait(10_000)
    assert len(bench.state.tasks) == KEPT + 5_000


def test_tasks_that_the_history_lacks_are_bounded() -> None:
    """While the follower is away nothing can be forgotten. New tasks are refused before the memory is full."""
    bench = Bench()
    bench.state.settings = replace(bench.state.settings, keep_finished=100, max_unsaved=400)
    bench.run(submit(count=501))
    bench.run(CancelTasks())
    assert bench.run(submit()) == HistoryBehind(finished=501, limit=500)
    bench.put(HistoryAdvanced(at=bench.now))
    bench.wait(1_000)
    assert len(bench.state.tasks) == 100
    assert isinstance(bench.run(submit()), tuple)
