"""Reports of agents about their attempts. The lease id is the fence: a report on any other lease is stale."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.commands import ReportFinished, ReportStarted
from dgpu.core.decide.calls import blameless, with_result
from dgpu.core.decide.endings import end_attempt
from dgpu.core.decide.health import GPU_FAULT, after_failure, after_success, stopped_for_card, told_to_tasks
from dgpu.core.decision import Decision
from dgpu.core.events import (
    AttemptMeasured,
    Event,
    GpuHealthChanged,
    ObservationChanged,
    TaskRequeued,
    TaskStarted,
    TaskStopRequested,
)
from dgpu.core.model.health import Cause
from dgpu.core.model.ids import task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Outcome, Task
from dgpu.core.rejections import StaleLease
from dgpu.core.state import ClusterState


def decide_started(state: ClusterState, command: ReportStarted) -> Decision:
    lease = state.leases.get(command.lease_id)
    if lease is None or lease.ended:
        return StaleLease(lease_id=command.lease_id)
    if lease.started:
        return ()
    started_at = min(command.at, max(command.at - command.ago_ms, lease.granted_at))
    return (TaskStarted(at=command.at, task_id=lease.task_id, lease_id=lease.id, started_at=started_at),)


def decide_finished(state: ClusterState, command: ReportFinished) -> Decision:
    lease = state.leases.get(command.lease_id)
    if lease is None or lease.ended:
        return StaleLease(lease_id=command.lease_id)
    task = state.tasks[lease.task_id]
    if lease.worker:
        command = blameless(state, lease, command)
        return with_result(state, end_attempt(state, task, lease, command), command)
    if command.usage is not None:
        measured = AttemptMeasured(at=command.at, task_id=task.id, lease_id=lease.id, usage=command.usage)
        return (measured, *_ended(state, task, lease, command))
    return _ended(state, task, lease, command)


def _ended(state: ClusterState, task: Task, lease: Lease, command: ReportFinished) -> tuple[Event, ...]:
    well = command.outcome is Outcome.EXITED and command.exit_code == 0
    # Events about the GPUs come before the release: a GPU that is out of service must never be idle in between.
    about_cards = _stuck(state, task, lease, command) if command.stuck_gpus else []
    if well:
        if state.health:
            about_cards += after_success(state, command.at, lease)
        return (*about_cards, *end_attempt(state, task, lease, command))
    evidence = stopped_for_card(state, lease)
    if evidence is None and not lease.stopping and not task.cancelling:
        blamed = after_failure(state, task, lease, command)
        # This attempt ends with this report: it needs no order to stop.
        about_cards += [each for each in blamed if not _stops(each, lease)]
        evidence = next(
            (
                told_to_tasks(each.cause, each.evidence)
                for each in blamed
                if isinstance(each, GpuHealthChanged)
            ),
            None,
        )
    if evidence is None:
        return (*about_cards, *end_attempt(state, task, lease, command))
    fault = replace(command, outcome=Outcome.NODE_FAULT, error=evidence)
    *before, ending = end_attempt(state, task, lease, fault)
    if isinstance(ending, TaskRequeued):
        ending = replace(ending, reason=GPU_FAULT)
    return (*about_cards, *before, ending)


def _stuck(state: ClusterState, task: Task, lease: Lease, command: ReportFinished) -> list[Event]:
    """A driver that releases memory slowly is no fault of the GPU. The GPU is not used until the next check finds it
    free.
    """
    events: list[Event] = []
    for gpu_id in lease.gpu_ids:
        gpu = state.gpus[gpu_id]
        if gpu_id in command.stuck_gpus and not gpu.gone and not gpu.fault:
            fault = f"memory not released by {task_name(task.id)}"
            events.append(
                ObservationChanged(
                    at=command.at,
                    gpu_id=gpu_id,
                    foreign_mb=gpu.foreign_mb,
                    fault=fault,
                    fault_cause=Cause.STUCK.value,
                )
            )
    return events


def _stops(event: Event, lease: Lease) -> bool:
    return isinstance(event, TaskStopRequested) and event.lease_id == lease.id
