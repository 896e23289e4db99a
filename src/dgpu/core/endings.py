"""How an attempt's end becomes the end of its task, or another attempt."""

from __future__ import annotations

from dgpu.core.commands import ReportFinished
from dgpu.core.events import Event, TaskFinished, TaskRequeued
from dgpu.core.lease import Lease
from dgpu.core.settings import Settings
from dgpu.core.task import Outcome, Restart, Task, TaskStatus

_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_OWN_FAILURES = {Outcome.EXITED, Outcome.SIGNALED, Outcome.TIMEOUT}
_MOST_DOUBLINGS = 32  # keeps the number small; the delay's own bound comes first


def settle(settings: Settings, task: Task, lease: Lease, report: ReportFinished) -> Event:
    """An attempt ended as its agent says."""
    at = report.at
    finished_at = min(at, max(at - report.ago_ms, task.started_at, lease.granted_at))
    if task.cancelling:
        return cancelled(task, at, finished_at, f"cancelled while running; {in_words(task, report)}")
    if report.outcome is Outcome.STOPPED:
        return requeued(task, at, reason="stopped", error=report.error)
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
    """An attempt is gone through no fault of its own: not counted, no back-off. Cancelled if that was asked for."""
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
    return min(settings.max_retry_delay_ms, settings.retry_delay_ms << min(retries, _MOST_DOUBLINGS))


def in_words(task: Task, report: ReportFinished) -> str:
    match report.outcome:
        case Outcome.EXITED:
            words = f"exited with code {report.exit_code}"
        case Outcome.SIGNALED:
            name = _SIGNALS.get(report.signal)
            words = f"killed by signal {report.signal}" + (f" ({name})" if name else "")
        case Outcome.TIMEOUT:
            words = f"timed out after {_seconds(task.timeout_ms)} s"
        case Outcome.STOPPED:
            words = "stopped"
        case Outcome.CANNOT_START:
            words = "could not be started"
        case Outcome.NODE_FAULT:
            words = "the node failed"
    return f"{words}: {report.error}" if report.error else words


def _restarted(settings: Settings, task: Task, report: ReportFinished) -> Event:
    """A service starts again whenever it ends. One that keeps ending soon backs off longer and longer."""
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


def _seconds(ms: int) -> str:
    whole, part = divmod(ms, 1_000)
    return f"{whole}.{part:03d}".rstrip("0") if part else str(whole)
