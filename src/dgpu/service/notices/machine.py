"""Which notices follow from a committed event. Without I/O.

An array sends one notice for all of its tasks: ten thousand mails help nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dgpu.core.events import CallsFailed, Event, TaskFinished, TasksCancelled, TaskStarted
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import Task, TaskDetail, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.notices.values import Notice

_MARK = b'"notify"'  # the key in a detail, found without decoding it
_decode_detail = msgspec.json.Decoder(TaskDetail).decode


class NoticeMachine:
    def __init__(self) -> None:
        self._arrays: dict[TaskId, list[int]] = {}  # tasks that have not ended; tasks that did not succeed

    def on_event(self, state: ClusterState, event: Event) -> Iterator[Notice]:
        if isinstance(event, TaskStarted):
            task = state.tasks.get(event.task_id)
            if task is not None and _MARK in task.detail and task.attempt == 1:
                is_first = not task.array_id or task.id == task.array_id
                yield from self._notices(state, task, "start", event.at) if is_first else ()
        elif isinstance(event, TaskFinished):
            yield from self._ended(state, event.task_id, event.at)
        elif isinstance(event, TasksCancelled | CallsFailed):
            for task_id in event.task_ids:
                yield from self._ended(state, task_id, event.at)

    def _ended(self, state: ClusterState, task_id: TaskId, at: int) -> Iterator[Notice]:
        task = state.tasks.get(task_id)
        if task is None or _MARK not in task.detail:
            return
        if not task.array_id:
            yield from self._notices(state, task, "end", at)
            return
        left = self._arrays.get(task.array_id)
        if left is None:
            left = self._arrays[task.array_id] = _count(state, task)
        else:
            left[0] -= 1
            left[1] += task.status is not TaskStatus.SUCCESS
        if left[0] <= 0:
            del self._arrays[task.array_id]
            yield from self._notices(state, task, "end", at, failed=left[1])

    def _notices(
        self, state: ClusterState, task: Task, event: str, at: int, failed: int = 0
    ) -> Iterator[Notice]:
        detail = _decode_detail(task.detail)
        has_failed = failed > 0 if task.array_id else task.status is TaskStatus.FAILED
        for number, (on, to) in enumerate(detail.notify):
            if event not in on and not (event == "end" and "fail" in on and has_failed):
                continue
            subject = task.array_id or task.id
            alone = not task.array_id
            yield Notice(
                id=f"{subject}-{task.attempt if alone else 0}-{event}-{number}",
                to=to,
                tenant_id=state.shapes[task.shape_id].tenant_id,
                event=event,
                task_id=task_name(subject),
                name=detail.name,
                status=task.status.value if alone else "",
                node=(task.node_id or "") if alone else "",
                exit_code=task.exit_code if alone else None,
                reason=task.reason if alone else "",
                error=task.error if alone else "",
                count=task.array_count,
                failed=failed,
                started_at=task.started_at if alone else 0,
                finished_at=task.finished_at if event == "end" else 0,
                at=at,
            )


def _count(state: ClusterState, task: Task) -> list[int]:
    """Once for each array and process. A task that is no longer in memory has ended; how is not known."""
    left = failed = 0
    for task_id in range(task.array_id, task.array_id + task.array_count):
        known = state.tasks.get(TaskId(task_id))
        if known is None:
            continue
        left += not known.status.is_final
        failed += known.status.is_final and known.status is not TaskStatus.SUCCESS
    return [left, failed]
