"""How the end of an attempt becomes the end of its task, or another attempt."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import ReportFinished
from dgpu.core.events import Event, RankEnded, TaskFinished, TaskRequeued
from dgpu.core.model.gang import failure_of
from dgpu.core.model.lease import Lease
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Restart, Task, TaskStatus, in_units
from dgpu.core.state import ClusterState

_SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_OWN_FAILURES: Final = {
    Outcome.EXITED,
    Outcome.SIGNALED,
    Outcome.TIMEOUT,
    Outcome.OUT_OF_MEMORY,
    Outcome.RAISED,
    Outcome.CANNOT_ENCODE,
}
_MAX_DOUBLINGS: Final = 32  # keeps the number small; the limit of the delay is reached first


def end_attempt(state: ClusterState, task: Task, lease: Lease, report: ReportFinished) -> tuple[Event, ...]:
    """An attempt ended as its agent reports. In a gang, one rank ends with this; the gang ends with its last rank."""
    if task.id not in state.gangs:
        return (settle(state.settings, task, lease, report),)
    return _end_rank(
        state,
        task,
        lease,
        RankEnded(
            at=report.at,
            task_id=task.id,
            lease_id=lease.id,
            outcome=report.outcome,
            finished_at=min(report.at, max(report.at - report.ago_ms, lease.granted_at)),
            exit_code=report.exit_code,
            signal=report.signal,
            error=report.error,
        ),
    )


def lose_attempt(state: ClusterState, lease: Lease, at: int, *, reason: str, error: str) -> tuple[Event, ...]:
    """The attempt under this lease can no longer be running. The other ranks of a gang still run: they are stopped."""
    task = state.tasks[lease.task_id]
    if task.allocation or task.id not in state.gangs:
        return (requeued(task, at, reason=reason, error=error),)
    if lease.ended:
        return ()
    outcome = Outcome.NODE_FAULT
    ended = RankEnded(
        at=at,
        task_id=task.id,
        lease_id=lease.id,
        outcome=outcome,
        finished_at=at,
        error=error,
        reason=reason,
    )
    return _end_rank(state, task, lease, ended)


def _end_rank(state: ClusterState, task: Task, lease: Lease, ended: RankEnded) -> tuple[Event, ...]:
    gang = state.gangs[task.id]
    if any(not state.leases[each].ended for each in gang.leases if each != lease.id):
        return (ended,)
    failed = gang.failed or failure_of(ended, lease.rank)
    if failed is None:
        report = ReportFinished(at=ended.at, lease_id=task.lease_id, outcome=Outcome.EXITED)
        return (ended, settle(state.settings, task, lease, report))
    if failed.reason:
        return (ended, requeued(task, ended.at, reason=failed.reason, error=failed.error))
    report = ReportFinished(
        at=ended.at,
        lease_id=task.lease_id,
        outcome=failed.outcome,
        exit_code=failed.exit_code,
        signal=failed.signal,
        error=failed.error,
        ago_ms=ended.at - failed.finished_at,
    )
    ending = settle(state.settings, task, lease, report)
    if isinstance(ending, TaskFinished | TaskRequeued) and ending.error:
        ending = replace(ending, error=f"rank {failed.rank}: {ending.error}")
    return (ended, ending)


def settle(settings: Settings, task: Task, lease: Lease, report: ReportFinished) -> Event:
    """An attempt ended as its agent reports."""
    at = report.at
    finished_at = min(at, max(at - report.ago_ms, task.started_at, lease.granted_at))
    if task.cancelling:
        return cancelled(task, at, finished_at, f"cancelled while running; {in_words(task, report)}")
    if report.outcome is Outcome.STOPPED:
        reason = "reclaimed" if lease.stop_for else "stopped"
        return requeued(task, at, reason=reason, error=report.error)
    if task.restart is Restart.ALWAYS:
        return _restarted(settings, task, report)
    error = in_words(task, report)
    if report.outcome is Outcome.EXITED and report.exit_code == 0:
        return _finished(task, report, finished_at, TaskStatus.SUCCESS, "", "")
    infrastructure = report.outcome is Outcome.NODE_FAULT
    retried = infrastructure or (task.restart is Restart.ON_FAILURE and report.outcome in _OWN_FAILURES)
    if retried and task.retries < task.max_retries:
        return TaskRequeued(
            at=at,
            task_id=task.id,
            lease_id=task.lease_id,
            eligible_at=at + retry_delay_ms(settings, task.retries),
            counted=True,
            reason=_reason(report),
            error=error,
        )
    return _finished(
        task,
        report,
        finished_at,
        TaskStatus.FAILED,
        "infrastructure" if infrastructure else _reason(report),
        error,
    )


def requeued(task: Task, at: int, *, reason: str, error: str = "") -> Event:
    """An attempt was lost through no fault of its own: not counted, no back-off. Cancelled if that was requested."""
    if task.cancelling:
        return cancelled(task, at, at, error or "cancelled while running")
    return TaskRequeued(
        at=at,
        task_id=task.id,
        lease_id=task.lease_id,
        eligible_at=0,
        counted=False,
        reason=reason,
        error=error,
    )


def cancelled(task: Task, at: int, finished_at: int, error: str) -> TaskFinished:
    return TaskFinished(
        at=at,
        task_id=task.id,
        lease_id=task.lease_id,
        status=TaskStatus.CANCELLED,
        finished_at=finished_at,
        reason="cancelled",
        error=error,
    )


def time_over(task: Task, at: int) -> TaskFinished:
    return TaskFinished(
        at=at,
        task_id=task.id,
        lease_id=task.lease_id,
        status=TaskStatus.SUCCESS,
        finished_at=min(at, task.started_at + task.timeout_ms),
        reason="time_over",
    )


def retry_delay_ms(settings: Settings, retries: int) -> int:
    return min(settings.max_retry_delay_ms, settings.retry_delay_ms << min(retries, _MAX_DOUBLINGS))


def in_words(task: Task, report: ReportFinished) -> str:
    match report.outcome:
        case Outcome.EXITED:
            words = f"exited with code {report.exit_code}"
        case Outcome.SIGNALED:
            name = _SIGNALS.get(report.signal)
            words = f"killed by signal {report.signal}" + (f" ({name})" if name else "")
        case Outcome.TIMEOUT:
            words = f"timed out after {in_units(task.timeout_ms)} s"
        case Outcome.STOPPED:
            words = "stopped"
        case Outcome.CANNOT_START:
            words = "could not be started"
        case Outcome.NODE_FAULT:
            words = "the node failed" if report.returned is None else "lost"
        case Outcome.OUT_OF_MEMORY:
            words = "ran out of GPU memory"
        case Outcome.RAISED:
            words = "raised an exception"
        case Outcome.CANNOT_ENCODE:
            words = "its result cannot be returned"
    return f"{words}: {report.error}" if report.error else words


def _restarted(settings: Settings, task: Task, report: ReportFinished) -> Event:
    """A service starts again whenever it ends. A service that keeps ending early backs off longer and longer."""
    at = report.at
    lived_long = task.started_at > 0 and at - task.started_at >= settings.max_retry_delay_ms
    return TaskRequeued(
        at=at,
        task_id=task.id,
        lease_id=task.lease_id,
        eligible_at=at + (settings.retry_delay_ms if lived_long else retry_delay_ms(settings, task.retries)),
        counted=not lived_long,
        reason="restart",
        error=in_words(task, report),
    )


def _finished(
    task: Task, report: ReportFinished, finished_at: int, status: TaskStatus, reason: str, error: str
) -> TaskFinished:
    exit_code: int | None = None
    if report.outcome is Outcome.EXITED:
        exit_code = report.exit_code
    elif report.outcome is Outcome.SIGNALED:
        exit_code = 128 + report.signal
    elif report.outcome is Outcome.OUT_OF_MEMORY:
        exit_code = 128 + report.signal if report.signal else report.exit_code
    return TaskFinished(
        at=report.at,
        task_id=task.id,
        lease_id=task.lease_id,
        status=status,
        finished_at=finished_at,
        exit_code=exit_code,
        reason=reason,
        error=error,
    )


def _reason(report: ReportFinished) -> str:
    match report.outcome:
        case Outcome.EXITED:
            return "exit_code"
        case Outcome.SIGNALED:
            return "signal"
        case _:
            return report.outcome.value
