"""What agents report of their attempts. The lease id is the fence: anything else is stale."""

from __future__ import annotations

from dgpu.core.commands import ReportFinished, ReportStarted
from dgpu.core.decision import Decision
from dgpu.core.endings import settle
from dgpu.core.events import Event, ObservationChanged, TaskStarted
from dgpu.core.ids import task_name
from dgpu.core.rejections import StaleLease
from dgpu.core.state import ClusterState


def decide_started(state: ClusterState, command: ReportStarted) -> Decision:
    lease = state.leases.get(command.lease_id)
    if lease is None:
        return StaleLease(lease_id=command.lease_id)
    if lease.started:
        return ()
    started_at = min(command.at, max(command.at - command.ago_ms, lease.granted_at))
    return (TaskStarted(at=command.at, task_id=lease.task_id, lease_id=lease.id, started_at=started_at),)


def decide_finished(state: ClusterState, command: ReportFinished) -> Decision:
    lease = state.leases.get(command.lease_id)
    if lease is None:
        return StaleLease(lease_id=command.lease_id)
    task = state.tasks[lease.task_id]
    ending = settle(state.settings, task, lease, command)
    if not command.stuck_gpus:
        return (ending,)
    # The fault comes before the release: the card is never idle in between.
    events: list[Event] = []
    for gpu_id in lease.gpu_ids:
        gpu = state.gpus[gpu_id]
        if gpu_id in command.stuck_gpus and not gpu.gone and not gpu.fault:
            fault = f"memory not released by {task_name(task.id)}"
            events.append(
                ObservationChanged(at=command.at, gpu_id=gpu_id, foreign_mb=gpu.foreign_mb, fault=fault)
            )
    return (*events, ending)
