"""Workers and function calls: reports about workers, the submit of new ones, and the end of those that are not needed.

A worker is a task that is never retried: its app starts another one when calls wait. When a worker ends, the calls that
have a slot of it wait again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import ReportFinished, ReportWorkers, WorkerReport
from dgpu.core.decide.endings import cancelled, retry_delay_ms
from dgpu.core.decision import Decision
from dgpu.core.events import (
    CallReturned,
    CallsFailed,
    Event,
    TaskFinished,
    TaskRequeued,
    TasksCancelled,
    TasksSubmitted,
    TaskStopRequested,
    WorkerChanged,
)
from dgpu.core.index.line import Line
from dgpu.core.model.ids import LeaseId, TaskId, task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Outcome, Task, TaskStatus
from dgpu.core.model.worker import MAX_MODELS, TAKEN_BACK, LoadedModel
from dgpu.core.rules.estimate import worker_spec
from dgpu.core.rules.giving import GAVE_WAY
from dgpu.core.rules.workers import (
    MAX_FAILURES,
    Seat,
    depth,
    elapsed_ms,
    missing_patience_ms,
    model_of,
    overdue_at,
    run_ms,
    seats,
    workers_wanted,
)
from dgpu.core.state import ClusterState

IDLE: Final = "idle"
NOT_NEEDED: Final = "not_needed"
NO_WORKER: Final = "no_worker"
WORKER_LOST: Final = "worker_lost"
_LEFT: Final = (GAVE_WAY, IDLE)  # a worker that was stopped for these did nothing wrong
_PORTION: Final = 1_000


# reports


def decide_workers(state: ClusterState, command: ReportWorkers) -> Decision:
    """Reports on other leases are stale and change nothing."""
    return tuple(
        changed for report in command.workers if (changed := _changed(state, report, command.at)) is not None
    )


def _changed(state: ClusterState, report: WorkerReport, at: int) -> WorkerChanged | None:
    lease = state.leases.get(report.lease_id)
    worker = None if lease is None else state.workers.get(lease.task_id)
    if lease is None or worker is None:
        return None
    models = tuple(sorted(report.models[:MAX_MODELS], key=lambda model: model.name))
    down = worker.down or report.down  # it does not come back: its app may have another one by now
    told = (report.ready, down, _but_for_use(models))
    if told == (worker.ready, worker.down, _but_for_use(worker.models)):
        return None
    return WorkerChanged(
        at=at,
        task_id=lease.task_id,
        lease_id=lease.id,
        ready=report.ready,
        models=models,
        down=down,
        retires_for=worker.retires_for,
    )


def _but_for_use(models: tuple[LoadedModel, ...]) -> tuple[LoadedModel, ...]:
    """The last use of a model changes with every call: it is no news of its own."""
    return tuple(replace(model, used_at=0) for model in models)


def with_result(
    state: ClusterState, decision: tuple[Event, ...], report: ReportFinished
) -> tuple[Event, ...]:
    """The end of a call, with its result just before it. A call that is tried again has none yet."""
    returned, lease = report.returned, state.leases[report.lease_id]
    ending = decision[-1]
    if returned is None or not lease.worker or not isinstance(ending, TaskFinished):
        return decision
    result = CallReturned(
        at=report.at,
        task_id=ending.task_id,
        lease_id=lease.id,
        result=returned.result,
        encoding=returned.encoding,
        ref=returned.ref,
        size=returned.size,
        traceback=returned.traceback,
    )
    if not lease.started:
        started_at = max(lease.granted_at, ending.finished_at - returned.ran_ms)
        ending = replace(ending, started_at=started_at)
    return (*decision[:-1], result, ending)


def blameless(state: ClusterState, lease: Lease, report: ReportFinished) -> ReportFinished:
    """A call that is lost because its worker was ordered to stop does not use up a retry."""
    if report.outcome is not Outcome.NODE_FAULT or not lease.worker:
        return report
    worker = state.leases[lease.worker]
    if worker.stopping or state.tasks[worker.task_id].cancelling:
        return replace(report, outcome=Outcome.STOPPED, error=report.error or "its worker was stopped")
    return report


# the end of a worker


def with_calls(state: ClusterState, decision: tuple[Event, ...]) -> tuple[Event, ...]:
    """A decision in which the calls of each worker that ends wait again first, and no worker is tried again."""
    if not any(isinstance(event, TaskFinished | TaskRequeued) for event in decision):
        return decision
    ended = {event.task_id for event in decision if isinstance(event, TaskFinished | TaskRequeued)}
    events: list[Event] = []
    for event in decision:
        if isinstance(event, TaskFinished | TaskRequeued) and event.task_id in state.workers:
            lease = state.leases[event.lease_id]
            ending = _worker_ended(state, event, lease)
            calls = [state.leases[call] for call in state.crews.calls_of(lease.id)]
            events += [_call_lost(state, call, ending, lease) for call in calls if call.task_id not in ended]
            event = ending  # noqa: PLW2901 - the same fact as the end of a worker
        events.append(event)
    return tuple(events)


def _worker_ended(state: ClusterState, event: TaskFinished | TaskRequeued, lease: Lease) -> TaskFinished:
    if lease.stopping in _LEFT and not state.tasks[event.task_id].cancelling:
        return TaskFinished(
            at=event.at,
            task_id=event.task_id,
            lease_id=event.lease_id,
            status=TaskStatus.SUCCESS,
            finished_at=event.at,
            exit_code=0,
            reason=lease.stopping,
        )
    if isinstance(event, TaskFinished):
        return event
    return TaskFinished(
        at=event.at,
        task_id=event.task_id,
        lease_id=event.lease_id,
        status=TaskStatus.FAILED,
        finished_at=event.at,
        reason=event.reason,
        error=event.error,
    )


def _call_lost(state: ClusterState, lease: Lease, worker: TaskFinished, worker_lease: Lease) -> Event:
    """Only a call that had begun may have ended its worker: it uses up a retry."""
    task = state.tasks[lease.task_id]
    error = f"its worker {task_name(worker.task_id)} ended" + (f": {worker.error}" if worker.error else "")
    if task.cancelling:
        return cancelled(task, worker.at, worker.at, f"cancelled while running; {error}")
    counted = lease.started and worker.status is TaskStatus.FAILED and not worker_lease.stopping
    if counted and task.retries >= task.max_retries:
        return TaskFinished(
            at=worker.at,
            task_id=task.id,
            lease_id=lease.id,
            status=TaskStatus.FAILED,
            finished_at=worker.at,
            reason="infrastructure",
            error=error,
        )
    return TaskRequeued(
        at=worker.at,
        task_id=task.id,
        lease_id=lease.id,
        eligible_at=worker.at + retry_delay_ms(state.settings, task.retries) if counted else 0,
        counted=counted,
        reason=WORKER_LOST,
        error=error,
    )


# the number of workers


def submit_workers(state: ClusterState, line: Line, at: int) -> tuple[Event, ...]:
    """New workers for an app whose calls wait. After a failed worker, the next one starts later."""
    app = state.apps[line.shape.app]
    wanted = workers_wanted(state, line, at)
    wanted = min(wanted, state.settings.max_waiting - state.waiting_count)
    if wanted <= 0:
        return ()
    if app.eligible_at > at:
        state.crews.look_at(app.id, app.eligible_at)
        return ()
    return (TasksSubmitted(at=at, first_id=state.next_task_id, entries=((wanted, worker_spec(state, app)),)),)


def failed_calls(state: ClusterState, at: int) -> Iterator[CallsFailed]:
    """Calls of apps whose workers end again and again before they are ready."""
    for app_id in sorted(state.crews.stirred):
        app = state.apps.get(app_id)
        if (
            app is None
            or app.failures < MAX_FAILURES
            or any(_leases(state, state.crews.by_app[app_id].workers))
        ):
            continue
        times = f"{app.failures} workers in a row ended before they were ready"
        error = f"{times}; the last one: {app.error}" if app.error else times
        while app_id in state.apps and (waiting := _waiting(state, app_id)):
            for start in range(0, len(waiting), _PORTION):
                portion = waiting[start : start + _PORTION]  # the failure of one call may end later ones
                task_ids = tuple(task_id for task_id in portion if not state.tasks[task_id].status.is_final)
                if task_ids:
                    yield CallsFailed(at=at, task_ids=task_ids, reason=NO_WORKER, error=error)


def _waiting(state: ClusterState, app_id: str) -> list[TaskId]:
    found: list[TaskId] = []
    account = state.accounts.open(state.apps[app_id].spec.shape.tenant_id)
    for known in account.shapes.values():
        if known.shape.app == app_id:
            for line in known.lines.values():
                found += line.after(TaskId(0))
    return sorted(found)


def surplus_workers(state: ClusterState, at: int) -> tuple[Event, ...]:
    """Workers that wait for a GPU although no call waits for them."""
    found = tuple(
        task_id
        for task_id, worker in state.workers.items()
        if state.tasks[task_id].status is TaskStatus.PENDING and not _has_waiting(state, worker.app_id)
    )
    return (TasksCancelled(at=at, task_ids=found, reason=NOT_NEEDED),) if found else ()


def _has_waiting(state: ClusterState, app_id: str) -> bool:
    crew = state.crews.by_app[app_id]
    running = sum(state.crews.queued(lease_id) for lease_id in _leases(state, crew.workers))
    return crew.live > running


def _leases(state: ClusterState, workers: dict[TaskId, None]) -> Iterator[LeaseId]:
    for task_id in workers:
        task: Task = state.tasks[task_id]
        if task.lease_id:
            yield task.lease_id


def idle_workers(state: ClusterState, at: int) -> Iterator[TaskStopRequested]:
    """Workers that had no call for too long."""
    before = at - state.settings.worker_idle_ms
    for worker in state.workers.values():
        if worker.idle_since and worker.idle_since <= before:
            yield TaskStopRequested(
                at=at,
                task_id=worker.task_id,
                lease_id=state.tasks[worker.task_id].lease_id,
                reason=IDLE,
                error=f"no call for {state.settings.worker_idle_ms // 1_000} s",
            )


# calls that queue at a worker


def take_back(state: ClusterState, at: int) -> Iterator[TaskStopRequested]:
    """Calls that queue behind an overdue one, if an idle worker would take them. A call that has begun meanwhile goes
    on: its worker drops only calls that have not.
    """
    for app_id in sorted(state.crews.by_app):
        app = state.apps[app_id]
        found = seats(state, app, at)
        for seat in found:
            due_at = overdue_at(state, app, seat.worker, seat.lease.id)
            if due_at is not None and due_at > at:
                state.crews.look_at(app_id, due_at)
        idle = [seat for seat in found if not seat.queued]
        if not idle:
            continue
        left = depth(app) * len(idle)
        for seat in found:
            if seat.overdue and seat.queued > 1 and left > 0:
                stops = list(islice(_taken_back(state, seat, idle, at), left))
                left -= len(stops)
                yield from stops


def _taken_back(state: ClusterState, seat: Seat, idle: list[Seat], at: int) -> Iterator[TaskStopRequested]:
    app = state.apps[seat.worker.app_id]
    runs_s, usual_s = elapsed_ms(state, seat, at) / 1_000, run_ms(app) / 1_000
    for call in islice(state.crews.calls_of(seat.lease.id), 1, None):
        lease = state.leases[call]
        if state.is_leaving(lease):
            continue
        missing_ms = missing_patience_ms(state, seat, idle, model_of(state, call), at)
        if missing_ms:
            state.crews.look_at(app.id, at + missing_ms)
            continue
        yield TaskStopRequested(
            at=at,
            task_id=lease.task_id,
            lease_id=call,
            reason=TAKEN_BACK,
            error=f"a call on {task_name(seat.worker.task_id)} runs for {runs_s:.1f} s, usually {usual_s:.1f} s, "
            "and a worker is idle",
        )
