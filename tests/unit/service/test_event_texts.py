"""One table says what the stream, the history and the log tell of an event."""

from __future__ import annotations

import logging

import msgspec
import pytest

from dgpu.core import events as e
from dgpu.core.model.health import Blame, Health
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import TaskStatus
from dgpu.service.event_texts import count_of, facts, heading_of, is_never_a_warning, log_fields
from dgpu.service.history.reader import PastEvent
from dgpu.service.views.events import past_node_facts

N1, GPU = NodeId("n1"), GpuId("GPU-1")
CARD = Gpu(id=GPU, node_id=N1, index=0, model="T4", memory_mb=15_000)
NODE_EVENTS = (
    e.NodeRegistered(1, Node(id=N1, boot_id="b", address="10.0.0.1"), (CARD,)),
    e.InventoryChanged(1, N1, (CARD,)),
    e.NodeLost(1, N1, "silent"),
    e.NodeDraining(1, N1, "fan"),
    e.NodeResumed(1, N1),
    e.ObservationChanged(1, GPU, 512, "Xid 79"),
    e.GpuHealthChanged(1, GPU, N1, Health.TRUSTED, Health.QUARANTINED, "xid", "Xid 79", 1),
    e.GpuBlamed(1, GPU, N1, Blame("lab", "train.py", TaskId(6), 1)),
)


@pytest.mark.parametrize("event", NODE_EVENTS, ids=lambda event: type(event).__name__)
def test_the_history_of_a_node_tells_what_the_stream_told(event) -> None:
    """The history keeps events as JSON; its reader knows the node."""
    body = msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(event)))
    for known in ("node_id", "at"):
        body.pop(known, None)
    _, past = past_node_facts(PastEvent(index=1, at=1, type=type(event).__name__, body=body))
    live = facts(event)
    live.pop("node", None)
    assert past == live


@pytest.mark.parametrize(
    ("event", "level", "name", "fields"),
    [
        (
            e.TaskRequeued(1, TaskId(6), LeaseId(2), 9, True, "node_fault", "disk"),
            logging.WARNING,
            "task_pending",
            {"task": "task-6", "reason": "node_fault", "counted": True, "error": "disk"},
        ),
        (
            e.TaskFinished(1, TaskId(6), LeaseId(2), TaskStatus.FAILED, 1, 3, "exit_code", "exit code 3"),
            logging.WARNING,
            "task_failed",
            {
                "task": "task-6",
                "status": "failed",
                "exit_code": 3,
                "reason": "exit_code",
                "error": "exit code 3",
            },
        ),
        (
            e.GangPlaced(
                1,
                TaskId(6),
                (
                    e.TaskPlaced(1, TaskId(6), LeaseId(2), 1, N1, (GPU,)),
                    e.TaskPlaced(1, TaskId(6), LeaseId(3), 1, NodeId("n2"), (GPU, GPU)),
                ),
            ),
            logging.INFO,
            "task_scheduled",
            {"task": "task-6", "nodes": ["n1", "n2"], "gpus": 3, "attempt": 1, "lease": 2},
        ),
        (
            e.TasksCancelled(1, (TaskId(6), TaskId(7)), "dependency_failed"),
            logging.WARNING,
            "task_failed",
            {"status": "cancelled", "count": 2, "first": "task-6", "reason": "dependency_failed"},
        ),
        (
            e.GpuHealthChanged(1, GPU, N1, Health.PROBING, Health.PAROLE, "check", "well"),
            logging.INFO,
            "gpu_health",
            {
                "gpu": GPU,
                "node": N1,
                "state": "parole",
                "before": "probing",
                "cause": "check",
                "evidence": "well",
            },
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, e.Event) else "",
)
def test_lines_of_the_log_have_their_documented_names_and_fields(event, level, name, fields) -> None:
    """docs/monitoring.md lists them; people filter by them."""
    heading = heading_of(event)
    assert heading is not None
    assert (heading.level, heading.name) == (level, name)
    assert log_fields(event) == fields


def test_the_log_says_nothing_of_housekeeping_and_of_nothing() -> None:
    assert heading_of(e.TasksForgotten(1, (TaskId(1),))) is None
    assert heading_of(e.TasksCancelled(1, ())) is None
    assert heading_of(e.ObservationChanged(1, GPU, 512, "")) is None
    assert heading_of(e.TaskStarted(1, TaskId(1), LeaseId(1), 1)) is None


@pytest.mark.parametrize("event", NODE_EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_that_is_skipped_as_harmless_is_no_warning(event) -> None:
    if is_never_a_warning(type(event)):
        heading = heading_of(event)
        assert heading is not None
        assert heading.level == logging.INFO


def test_an_event_of_several_tasks_counts_them() -> None:
    assert count_of(e.TasksHeld(1, (TaskId(1), TaskId(2)))) == 2
    assert count_of(e.NodeResumed(1, N1)) == 1
