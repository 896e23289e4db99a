"""Events of one task, as `GET /tasks/{id}/events` shows them."""

from __future__ import annotations

from dgpu.core import events
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.events import events_of_task


def test_internal_events_of_a_task_are_left_out() -> None:
    of_task = (
        events.TaskStarted(2, 5, 9, 2),
        events.AttemptMeasured(3, 5, 9, AttemptUsage()),
        events.TaskStarted(2, 6, 10, 2),
    )
    shown = events_of_task([CommittedGroup(index=1, events=of_task)], 5)
    assert [each.type for each in shown] == ["task_started"]
