"""Warm workers that gave no sign of life, and apps whose workers do not start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dgpu.core.decide.calls import NO_WORKER
from dgpu.core.events import CallsFailed, WorkerChanged
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.wire.answers import instant

FoundOfTenant = tuple[str, str, dict[str, Any], str]  # subject, summary, facts, tenant
_MAX_KEPT: Final = 1_000
_MAX_ERROR: Final = 500  # characters


class WorkerTrouble(NamedTuple):
    """`task`: the worker, or the first of the calls that failed."""

    task: TaskId
    tenant: str  # empty: no longer known
    node: str
    at: int
    error: str
    failed_calls: int = 0  # 0: the worker had started


class TroubledWorkers:
    """The troubles of the last minutes. The state forgets a worker that has ended, and an app without calls."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._kept: deque[tuple[int, TaskId, str, int]] = deque(maxlen=_MAX_KEPT)

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            if type(event) is WorkerChanged and event.down:
                self._kept.append((event.at, event.task_id, event.down, 0))
            elif type(event) is CallsFailed and event.reason == NO_WORKER:
                self._kept.append((event.at, event.task_ids[0], event.error, len(event.task_ids)))

    def read(self, state: ClusterState, now: int) -> tuple[WorkerTrouble, ...]:
        while self._kept and self._kept[0][0] <= now - self._window_ms:
            self._kept.popleft()
        return tuple(self._of(state, *each) for each in self._kept)

    def _of(self, state: ClusterState, at: int, task_id: TaskId, error: str, calls: int) -> WorkerTrouble:
        task = state.tasks.get(task_id)
        tenant = "" if task is None else state.shapes[task.shape_id].tenant_id
        node = "" if task is None or calls else task.node_id or ""
        return WorkerTrouble(task_id, tenant, node, at, error[:_MAX_ERROR], calls)


def troubled(troubles: tuple[WorkerTrouble, ...]) -> Iterator[FoundOfTenant]:
    """Calls that fail together are told once per tenant, with the last error."""
    failed: dict[str, list[WorkerTrouble]] = {}
    down: dict[TaskId, WorkerTrouble] = {}
    for each in troubles:
        if each.failed_calls:
            failed.setdefault(each.tenant, []).append(each)
        else:
            down[each.task] = each
    for task_id, each in down.items():
        name = task_name(task_id)
        place = f" on {each.node}" if each.node else ""
        facts: dict[str, Any] = {
            "state": "down",
            "task": name,
            "node": each.node,
            "error": each.error,
            "at": instant(each.at),
        }
        text = f"Worker {name}{place} was ended at {instant(each.at)}: {each.error}. Its calls are repeated."
        yield name, text, facts, each.tenant
    for tenant, told in failed.items():
        last, calls = told[-1], sum(each.failed_calls for each in told)
        name = task_name(last.task)
        facts = {"state": "unstarted", "tenant": tenant, "task": name, "calls": calls, "error": last.error}
        of = f" of tenant {tenant}" if tenant else ""
        text = f"Workers{of} do not start; {calls} calls failed. The last one, {name}: {last.error}."
        yield f"tenant {tenant}", text, facts, tenant
