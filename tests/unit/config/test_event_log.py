from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dgpu.core.events import (
    DemandChanged,
    Event,
    GpuBlamed,
    GpuHealthChanged,
    NodeLost,
    NodeRegistered,
    ObservationChanged,
    PriorityChanged,
    TaskCancelRequested,
    TaskFinished,
    TaskPlaced,
    TasksCancelled,
    TasksHeld,
    TasksReleased,
    TasksSubmitted,
    TaskStopRequested,
)
from dgpu.core.model.health import Blame, Health
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Node
from dgpu.core.model.task import Pool, Shape, TaskSpec, TaskStatus
from dgpu.entry.event_log import EventLog


class Group(NamedTuple):
    events: tuple[Event, ...]


class Lines:
    def __init__(self) -> None:
        self.told: list[tuple[int, str, dict[str, Any]]] = []

    def log(self, level: int, name: str, **fields: Any) -> None:
        self.told.append((level, name, fields))

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.told]


class Story:
    def __init__(self) -> None:
        self.now = 0.0
        self.lines = Lines()
        self.later: list[Any] = []
        self.log = EventLog(
            logger=self.lines, clock=lambda: self.now, call_later=lambda _, flush: self.later.append(flush)
        )

    def commit(self, *events: Event) -> None:
        self.log.on_committed(Group(events))


@pytest.fixture
def story() -> Iterator[Story]:
    logger = logging.getLogger("dgpu.events")
    logger.setLevel(logging.INFO)
    yield Story()
    logger.setLevel(logging.NOTSET)


def submitted(count: int = 1, first: int = 1) -> TasksSubmitted:
    shape = Shape(tenant_id=TenantId("t"), pool=Pool.BATCH, priority=50, gpus=2)
    return TasksSubmitted(1, TaskId(first), ((count, TaskSpec(shape=shape, detail=b'{"env":{"K":"hush"}}')),))


def placed(task: int) -> TaskPlaced:
    return TaskPlaced(1, TaskId(task), LeaseId(task), 1, NodeId("n"), (GpuId("g"),))


def finished(task: int, status: TaskStatus = TaskStatus.SUCCESS) -> TaskFinished:
    return TaskFinished(1, TaskId(task), LeaseId(task), status, 1, 3, "exit_code", "exit code 3")


def test_the_life_of_a_task_is_told_under_its_known_names(story: Story) -> None:
    story.commit(submitted(), placed(1), finished(1))
    story.commit(finished(2, TaskStatus.FAILED), TasksCancelled(1, (TaskId(4), TaskId(5))))
    assert story.lines.names == [
        "task_submitted",
        "task_scheduled",
        "task_finished",
        "task_failed",
        "task_finished",
    ]
    assert story.lines.told[3][0] == logging.WARNING
    assert story.lines.told[3][2]["exit_code"] == 3


def test_what_people_and_the_scheduler_do_to_a_task_is_told_with_its_cause(story: Story) -> None:
    story.commit(
        TasksHeld(1, (TaskId(1),)),
        TasksReleased(1, (TaskId(1),)),
        PriorityChanged(1, 80, ((TaskId(1), 50),)),
        TaskCancelRequested(1, TaskId(1)),
        TaskStopRequested(1, TaskId(2), LeaseId(2), "gpu_fault", "the card is lost"),
        DemandChanged(1, TaskId(3), 8_192),
        GpuBlamed(1, GpuId("g"), NodeId("n"), Blame("t", "p", TaskId(4), 1)),
    )
    assert story.lines.names == [
        "task_held",
        "task_released",
        "task_priority_changed",
        "task_cancel_requested",
        "task_stop_requested",
        "task_demand_changed",
        "gpu_blamed",
    ]
    stop = story.lines.told[4]
    assert (stop[0], stop[2]["reason"]) == (logging.WARNING, "gpu_fault")
    assert story.lines.told[5][2]["cause"] == "out_of_memory"
    assert story.lines.told[6][2]["task"] == "task-4"


def test_nodes_and_faults_are_told(story: Story) -> None:
    story.commit(
        NodeRegistered(1, Node(id=NodeId("n"), boot_id="b"), ()),
        NodeLost(1, NodeId("n"), "silent"),
        ObservationChanged(1, GpuId("g"), 0, "the card is lost"),
        ObservationChanged(1, GpuId("g"), 256, ""),
    )
    assert story.lines.names == ["agent_registered", "agent_offline", "gpu_fault"]


def test_a_gpu_that_leaves_service_is_critical_and_its_way_back_is_not(story: Story) -> None:
    left = GpuHealthChanged(1, GpuId("g"), NodeId("n"), Health.TRUSTED, Health.QUARANTINED, "xid", "Xid 79")
    back = GpuHealthChanged(2, GpuId("g"), NodeId("n"), Health.PROBING, Health.PAROLE, "check", "well")
    story.commit(left, back)
    (level, name, fields), (later, _, _) = story.lines.told
    assert (level, name, fields["evidence"]) == (logging.CRITICAL, "gpu_error", "Xid 79")
    assert later == logging.INFO


def test_a_batch_of_tasks_is_one_line_with_its_number(story: Story) -> None:
    story.commit(submitted(count=10_000, first=7))
    ((_, _, fields),) = story.lines.told
    assert fields == {"count": 10_000, "first": "task-7", "last": "task-10006"}


def test_a_tasks_environment_is_not_told(story: Story) -> None:
    story.commit(submitted())
    assert "hush" not in repr(story.lines.told)


def test_beyond_a_rate_events_are_counted_instead_of_told_singly(story: Story) -> None:
    for task in range(3_000):
        story.commit(submitted(first=task + 1), placed(task + 1))
    assert len(story.lines.told) == 2 * 50
    assert len(story.later) == 1, "one flush is arranged, not one per event"
    story.later[0]()
    assert story.lines.told[-2:] == [
        (logging.INFO, "task_submitted", {"count": 2_950, "summary": "more in the same second"}),
        (logging.INFO, "task_scheduled", {"count": 2_950, "summary": "more in the same second"}),
    ]


def test_a_storm_of_submits_does_not_hide_a_lost_node(story: Story) -> None:
    for task in range(200):
        story.commit(submitted(first=task + 1))
    story.commit(NodeLost(1, NodeId("n"), "silent"))
    assert story.lines.names[-1] == "agent_offline"


def test_the_next_second_is_told_singly_again(story: Story) -> None:
    for task in range(60):
        story.commit(submitted(first=task + 1))
    story.now += 1.5
    story.commit(submitted(first=61))
    assert story.lines.told[-2][2]["count"] == 10
    assert story.lines.told[-1][2]["task"] == "task-61"


def test_at_the_level_of_warnings_only_warnings_are_told(story: Story) -> None:
    logging.getLogger("dgpu.events").setLevel(logging.WARNING)
    story.commit(
        submitted(), placed(1), finished(1), finished(2, TaskStatus.FAILED), NodeLost(1, NodeId("n"), "x")
    )
    assert story.lines.names == ["task_failed", "agent_offline"]
