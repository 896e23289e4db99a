"""When a GPU is quarantined, and how it returns to service. core/model/health.py draws the steps.

Failed tasks count against a GPU only if they cannot be the fault of one user's work: the last `failures_in_a_row`
attempts that failed on it ran different programs, no attempt succeeded in between, and every tenant among them has
since had a task succeed on another GPU. So a hundred broken tasks of one user whose tasks succeed nowhere take no GPU
out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from msgspec.structs import replace

from dgpu.core.commands import ObserveCondition, ObserveGpu, RecoverGpu, ReportCheck, ReportFinished
from dgpu.core.decide.endings import requeued
from dgpu.core.decision import Decision
from dgpu.core.events import (
    Event,
    GpuBlamed,
    GpuHealthChanged,
    GpuRunSucceeded,
    RankEnded,
    TaskStopRequested,
)
from dgpu.core.model.health import Blame, Cause, GpuHealth, Health, lasts
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu
from dgpu.core.model.run_times import command_of
from dgpu.core.model.task import Outcome, Task, TaskStatus
from dgpu.core.rejections import GpuInService, StaleCheck, UnknownGpu
from dgpu.core.state import ClusterState

GPU_FAULT: Final = "gpu_fault"  # the reason of a TaskStopRequested

_COMMAND_FAILED: Final = frozenset({126, 127})  # exit codes of the shell: it found no command to run
_CRASHES: Final = frozenset(
    {4, 6, 7, 8, 11}
)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV; others are sent by people
_PROGRAM_WORDS: Final = 2  # "python train.py", without its arguments
_MAX_PROGRAM: Final = 100


_OfGpu = TypeVar("_OfGpu", ObserveGpu, ObserveCondition, ReportCheck, RecoverGpu)


def of_gpu(
    decide: Callable[[ClusterState, _OfGpu, Gpu], Decision],
) -> Callable[[ClusterState, _OfGpu], Decision]:
    """Refuses a command about an unknown GPU."""

    def decide_known(state: ClusterState, command: _OfGpu) -> Decision:
        gpu = state.gpus.get(command.gpu_id)
        return UnknownGpu(gpu_id=command.gpu_id) if gpu is None else decide(state, command, gpu)

    return decide_known


# quarantine


def fall_ill(
    state: ClusterState, at: int, gpu_id: GpuId, node_id: NodeId, cause: Cause, evidence: str
) -> tuple[Event, ...]:
    """Takes a GPU out of service and stops its tasks. Empty if the GPU is out of service already."""
    known = state.health.get(gpu_id) or GpuHealth(gpu_id=gpu_id, node_id=node_id)
    if known.state in {Health.QUARANTINED, Health.OUT}:
        return ()
    is_first = at - known.quarantined_at >= state.settings.health.window_ms
    quarantines = 1 if is_first else known.quarantines + 1
    step = _step(known, at, Health.QUARANTINED, cause.value, evidence)
    quarantined = replace(step, node_id=node_id, quarantines=quarantines)
    return (quarantined, *_stops(state, at, gpu_id, node_id, told_to_tasks(cause, evidence)))


def once_per_lease(events: Iterable[Event]) -> Iterator[Event]:
    """If two GPUs of one lease are quarantined together, the lease ends once. A rank that has ended needs no order to
    stop. The end of its gang, identified by the lease of rank 0, may follow directly.
    """
    seen: set[LeaseId] = set()
    ranks: set[LeaseId] = set()
    for event in events:
        lease_id = getattr(event, "lease_id", None)
        if isinstance(event, RankEnded):
            ranks.add(event.lease_id)
        elif lease_id is not None:
            is_over = lease_id in seen or (isinstance(event, TaskStopRequested) and lease_id in ranks)
            seen.add(lease_id)
            if is_over:
                continue
        yield event


def fault_news(state: ClusterState, gpu: Gpu) -> bool:
    """Whether the fault differs from the known fault of the GPU."""
    known = state.gpus.get(gpu.id)
    return bool(gpu.fault) and (known is None or known.fault != gpu.fault)


def told_to_tasks(cause: str, evidence: str) -> str:
    """Evidence from failed tasks names them and their programs. The error of a task of another tenant must not."""
    return "different programs failed on it in a row" if cause == Cause.FAILURES else evidence


def _stops(state: ClusterState, at: int, gpu_id: GpuId, node_id: NodeId, why: str) -> Iterator[Event]:
    error = f"GPU {gpu_id} is out of service: {why}"
    for lease in state.node_leases(node_id):
        task = state.tasks[lease.task_id]
        if gpu_id not in lease.gpu_ids or lease.ended or lease.stopping or task.cancelling:
            continue
        if task.allocation:
            # An allocation exists only in the state: there is no process to wait for.
            yield requeued(task, at, reason=GPU_FAULT, error=error)
        else:
            yield TaskStopRequested(at=at, task_id=task.id, lease_id=lease.id, reason=GPU_FAULT, error=error)


# evidence from the ends of tasks


def stopped_for_card(state: ClusterState, lease: Lease) -> str | None:
    """The reason of the stop, if the scheduler stopped the task because of a faulty GPU."""
    if lease.stopping != GPU_FAULT:
        return None
    for gpu_id in lease.gpu_ids:
        known = state.health.get(gpu_id)
        if known is not None and not known.serves:
            return f"GPU {gpu_id} is out of service: {told_to_tasks(known.cause, known.evidence)}"
    return "a GPU of it was out of service"


def after_success(state: ClusterState, at: int, lease: Lease) -> list[Event]:
    events: list[Event] = []
    for gpu_id in lease.gpu_ids:
        known = state.health.get(gpu_id)
        if known is None or not (known.blames or known.state is Health.PAROLE):
            continue
        events.append(GpuRunSucceeded(at=at, gpu_id=gpu_id, run_of=lease.task_id))
        good_runs = known.good_runs + 1
        if known.state is Health.PAROLE and good_runs >= state.settings.health.parole_runs:
            evidence = f"{good_runs} tasks in a row ended well on parole, the last {task_name(lease.task_id)}"
            events.append(_step(known, at, Health.TRUSTED, "good_runs", evidence))
    return events


def after_failure(state: ClusterState, task: Task, lease: Lease, report: ReportFinished) -> list[Event]:
    """With several GPUs, the faulty one is unknown."""
    wanted = state.settings.health.failures_in_a_row
    if not wanted or len(lease.gpu_ids) != 1 or not _speaks_against_card(report):
        return []
    gpu_id = lease.gpu_ids[0]
    known = state.health.get(gpu_id)
    if known is not None and not known.serves:
        return []
    tenant_id = state.shapes[task.shape_id].tenant_id
    blame = Blame(tenant_id, program_of(task), task.id, report.at)
    before = () if known is None else known.blames
    if any((each.tenant_id, each.program) == (blame.tenant_id, blame.program) for each in before):
        return []
    events: list[Event] = [GpuBlamed(at=report.at, gpu_id=gpu_id, node_id=lease.node_id, blame=blame)]
    blames = (*before, blame)[-wanted:]
    if len(blames) == wanted and _all_do_well_elsewhere(state, gpu_id, blames):
        told = ", ".join(f"{task_name(each.task_id)} ({each.program})" for each in blames)
        evidence = f"{wanted} different programs failed on it in a row, while their tenants succeed elsewhere: {told}"
        events += fall_ill(state, report.at, gpu_id, lease.node_id, Cause.FAILURES, evidence)
    return events


def program_of(task: Task) -> str:
    """The program of a task, without its options: a sweep over parameters is one program."""
    command = command_of(task.detail)
    words = command.split() if isinstance(command, str) else list(command)
    plain = [word for word in words[:8] if not word.startswith("-")]
    return " ".join(plain[:_PROGRAM_WORDS])[:_MAX_PROGRAM]


def _speaks_against_card(report: ReportFinished) -> bool:
    if report.outcome is Outcome.EXITED:
        return report.exit_code != 0 and report.exit_code not in _COMMAND_FAILED
    return report.outcome is Outcome.SIGNALED and report.signal in _CRASHES


def _all_do_well_elsewhere(state: ClusterState, gpu_id: GpuId, blames: tuple[Blame, ...]) -> bool:
    """Scans the tasks that ended recently. Called only when a GPU has its full row of failures."""
    since = min(each.at for each in blames)
    missing = {each.tenant_id for each in blames}
    for ended_at, task_id in state.ended:
        ended = state.tasks.get(task_id)
        if ended is None or ended_at < since or ended.status is not TaskStatus.SUCCESS:
            continue
        if ended.gpu_ids and gpu_id not in ended.gpu_ids:
            missing.discard(state.shapes[ended.shape_id].tenant_id)
            if not missing:
                return True
    return False


# return to service


@of_gpu
def decide_check(state: ClusterState, command: ReportCheck, gpu: Gpu) -> Decision:
    known = state.health.get(gpu.id)
    if known is None or known.state is not Health.PROBING or known.checks != command.number:
        return StaleCheck(gpu_id=command.gpu_id, number=command.number)
    if not command.ok:
        return fall_ill(state, command.at, gpu.id, gpu.node_id, Cause.CHECK, command.evidence)
    if lasts(gpu.fault, gpu.fault_cause):
        return fall_ill(state, command.at, gpu.id, gpu.node_id, Cause.CHECK, gpu.fault)
    return (_step(known, command.at, Health.PAROLE, "check", command.evidence),)


@of_gpu
def decide_recover(state: ClusterState, command: RecoverGpu, gpu: Gpu) -> Decision:
    known = state.health.get(gpu.id)
    if known is None or known.serves:
        return GpuInService(gpu_id=gpu.id, state=gpu.health)
    if known.state is Health.PROBING:
        return ()
    evidence = command.reason or "an operator asks for it"
    step = _step(known, command.at, Health.PROBING, "operator", evidence, checks=known.checks + 1)
    return (replace(step, quarantines=0),)


def due_steps(state: ClusterState, at: int) -> Iterator[Event]:
    """The steps that are due at this time, GPU by GPU in the order of their ids."""
    for gpu_id in sorted(state.health):
        due = state.health_due_at(state.health[gpu_id])
        if due is not None and due <= at:
            yield from _on_time(state, state.health[gpu_id], at)


def _on_time(state: ClusterState, known: GpuHealth, at: int) -> tuple[Event, ...]:
    rules = state.settings.health
    if known.state is Health.PROBING:
        evidence = f"no answer to the check within {rules.check_timeout_ms // 1_000} s"
        return fall_ill(state, at, known.gpu_id, known.node_id, Cause.CHECK, evidence)
    if known.state is Health.PAROLE:
        evidence = (
            f"{rules.parole_ms // 1_000} s on parole without a fault, {known.good_runs} tasks ended well"
        )
        return (_step(known, at, Health.TRUSTED, "time", evidence),)
    if not known.clear_since:
        fault = state.gpus[known.gpu_id].fault
        evidence = f"after {rules.give_up_ms // 1_000} s it still stands: {fault}"
        return (_step(known, at, Health.OUT, known.cause, evidence),)
    if known.quarantines > rules.max_quarantines:
        hours = rules.window_ms // 3_600_000
        evidence = f"quarantined {known.quarantines} times within {hours} h, the last time: {known.evidence}"
        return (_step(known, at, Health.OUT, known.cause, evidence),)
    evidence = f"nothing wrong for {rules.cool_down_ms // 1_000} s"
    return (_step(known, at, Health.PROBING, "recovered", evidence, checks=known.checks + 1),)


def _step(
    known: GpuHealth, at: int, after: Health, cause: str, evidence: str, *, checks: int | None = None
) -> GpuHealthChanged:
    return GpuHealthChanged(
        at=at,
        gpu_id=known.gpu_id,
        node_id=known.node_id,
        before=known.state,
        after=after,
        cause=cause,
        evidence=evidence,
        quarantines=known.quarantines,
        checks=known.checks if checks is None else checks,
    )
