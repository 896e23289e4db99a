"""Workers as responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from dgpu.core.model.ids import LeaseId, TaskId, task_name
from dgpu.core.model.task import Task
from dgpu.core.model.worker import Worker
from dgpu.core.state import ClusterState
from dgpu.service.machine.progress import Progress
from dgpu.wire.answers import instant, instant_or_none
from dgpu.wire.call_answers import ProgressAnswer, WorkerModelRow, WorkerRow

ProgressOf: TypeAlias = Callable[[LeaseId], Progress | None]


class CallFacts(NamedTuple):
    """What a running function call shows beside its task."""

    worker: TaskId
    progress: Progress | None

    def shown(self) -> dict[str, Any]:
        return {
            "worker": task_name(self.worker),
            "progress": None
            if self.progress is None
            else ProgressAnswer(
                fraction=self.progress.permille / 1_000,
                text=self.progress.text,
                at=instant(self.progress.at),
            ),
        }


def call_facts(state: ClusterState, task: Task, progress_of: ProgressOf) -> CallFacts | None:
    """None: it is no function call, or has no slot."""
    lease = state.leases.get(task.lease_id)
    if lease is None or not lease.worker:
        return None
    return CallFacts(state.leases[lease.worker].task_id, progress_of(lease.id))


def worker_rows(state: ClusterState) -> list[WorkerRow]:
    return [_row(state, worker) for worker in state.workers.values()]


def _row(state: ClusterState, worker: Worker) -> WorkerRow:
    task = state.tasks[worker.task_id]
    calls = [state.leases[each] for each in state.crews.calls_of(task.lease_id)]
    running = next((lease for lease in calls if lease.started), calls[0] if calls else None)
    return WorkerRow(
        task_id=task_name(task.id),
        app=worker.app_id,
        tenant_id=state.shapes[task.shape_id].tenant_id,
        node=task.node_id,
        gpus=[state.gpus[gpu_id].index for gpu_id in task.gpu_ids if gpu_id in state.gpus],
        status="starting" if not worker.ready else "busy" if calls else "warm",
        idle_since=instant_or_none(worker.idle_since),
        models=[
            WorkerModelRow(
                name=model.name,
                loading=model.loading,
                memory_mb=model.memory_mb,
                last_used_at=instant(model.used_at) if model.used_at else None,
            )
            for model in worker.models
        ],
        running=None if running is None else task_name(running.task_id),
        queued=max(0, len(calls) - 1),
    )
