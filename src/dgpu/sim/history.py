"""The history of the simulated world: results of tasks, written some time after the commit. It survives every crash."""

from __future__ import annotations

from dgpu.core.events import CallsFailed, TaskFinished, TasksCancelled
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.service.machine.outputs import CommittedGroup


class SimHistory:
    def __init__(self) -> None:
        self.ended: dict[TaskId, TaskStatus] = {}
        self.seen_index = 0
        self.seen_at = 0

    def see(self, group: CommittedGroup) -> None:
        """Groups arrive in order; a repeated group changes nothing."""
        if group.index <= self.seen_index:
            return
        self.seen_index = group.index
        for event in group.events:
            if isinstance(event, TaskFinished):
                self.ended[event.task_id] = event.status
            elif isinstance(event, TasksCancelled):
                self.ended.update(dict.fromkeys(event.task_ids, TaskStatus.CANCELLED))
            elif isinstance(event, CallsFailed):
                self.ended.update(dict.fromkeys(event.task_ids, TaskStatus.FAILED))
            self.seen_at = max(self.seen_at, event.at)
