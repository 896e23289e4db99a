"""Facts that placement learns: the condition of GPUs, typical tasks, and the memory that tasks need."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import ObserveCondition, ReportFinished
from dgpu.core.decide.health import of_gpu
from dgpu.core.decide.report import decide_finished
from dgpu.core.decision import Decision
from dgpu.core.events import (
    ConditionChanged,
    DemandChanged,
    EstimateLearned,
    Event,
    RankEnded,
    TaskFinished,
    TaskRequeued,
    TypicalChanged,
)
from dgpu.core.index.cards import usable_mb
from dgpu.core.model.demand import Demand
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, Kind
from dgpu.core.model.settings import Placement
from dgpu.core.model.task import Outcome, Task, TaskStatus, in_steps
from dgpu.core.rejections import Rejection
from dgpu.core.rules.estimate import after_oom, after_oom_of_call, after_run
from dgpu.core.rules.fragment import is_due, typical_of
from dgpu.core.state import ClusterState

_PACK: Final = Placement.PACK  # a local name: looked up before every pass


@of_gpu
def decide_condition(_: ClusterState, command: ObserveCondition, gpu: Gpu) -> Decision:
    over_mb = in_steps(max(0, command.over_mb))
    told = (over_mb, command.load_band, command.heat_band, command.rest_band, command.warm)
    if gpu.gone or told == (gpu.over_mb, gpu.load_band, gpu.heat_band, gpu.rest_band, gpu.warm):
        return ()
    return (
        ConditionChanged(
            at=command.at,
            gpu_id=gpu.id,
            over_mb=over_mb,
            load_band=command.load_band,
            heat_band=command.heat_band,
            rest_band=command.rest_band,
            warm=command.warm,
        ),
    )


def decide_end(state: ClusterState, command: ReportFinished) -> Decision:
    """The end of an attempt, and the memory estimate learned from it."""
    decision = decide_finished(state, command)
    if isinstance(decision, Rejection):
        return decision
    lease = state.leases[command.lease_id]
    task = state.tasks[lease.task_id]
    if _ran_out(state, task, command):
        return (
            _after_oom_of_call(state, task, lease, decision)
            if lease.worker
            else _after_oom(state, task, lease, decision)
        )
    if not command.peak_memory_mb:
        return decision
    ending = decision[-1]
    if not isinstance(ending, TaskFinished) or ending.status is not TaskStatus.SUCCESS:
        return decision
    learned = after_run(state, task, command.peak_memory_mb, command.at, ending.finished_at)
    if learned is None:
        return decision
    return (*decision, EstimateLearned(at=command.at, key=learned[0], estimate=learned[1]))


def _ran_out(state: ClusterState, task: Task, command: ReportFinished) -> bool:
    """A gang ends like the first rank that failed, regardless of which rank reports last."""
    gang = state.gangs.get(task.id)
    outcome = command.outcome if gang is None or gang.failed is None else gang.failed.outcome
    return outcome is Outcome.OUT_OF_MEMORY


def typical_due(state: ClusterState, at: int) -> tuple[Event, ...]:
    """Under `placement: pack`, before a pass: a new table of typical tasks, if the last one is out of date."""
    if state.settings.placement is not _PACK:
        return ()
    if not is_due(state.typical, state.next_task_id - max(1, state.typical.next_id)):
        return ()
    uses: dict[Demand, int] = {}
    for known in state.queue.shapes.values():
        uses[known.demand] = uses.get(known.demand, 0) + known.uses
    gpus_of: dict[Kind, int] = {}
    for gpu in state.gpus.values():
        if not (gpu.gone or gpu.reserved):
            kind = Kind(gpu.model, usable_mb(gpu, state.settings))
            gpus_of[kind] = gpus_of.get(kind, 0) + 1
    table = typical_of(uses.items(), gpus_of, state.next_task_id)
    return (TypicalChanged(at=at, typical=table),)


def _after_oom_of_call(
    state: ClusterState, task: Task, lease: Lease, decision: tuple[Event, ...]
) -> Decision:
    """The estimates of its model and of its app learn: the next worker asks for more. Another attempt would have the
    same worker, so the call itself is not tried again.
    """
    shape, at = state.shapes[task.shape_id], decision[-1].at
    worker = state.leases[lease.worker]
    learned: list[Event] = []
    if shape.model:
        key, estimate, _ = after_oom(state, task, worker, at)
        learned.append(EstimateLearned(at=at, key=key, estimate=estimate))
    found = after_oom_of_call(state, state.apps[shape.app], worker, at)
    if found is not None:
        learned.append(EstimateLearned(at=at, key=found[0], estimate=found[1]))
    return (*learned, *decision)


def _after_oom(state: ClusterState, task: Task, lease: Lease, decision: tuple[Event, ...]) -> Decision:
    *before, ending = decision
    if isinstance(ending, RankEnded):
        return decision  # other ranks still run; the estimate is learned when the last one ends
    key, learned, demand_mb = after_oom(state, task, lease, ending.at)
    events = [*before, EstimateLearned(at=ending.at, key=key, estimate=learned)]
    larger = demand_mb > state.shapes[task.shape_id].gpu_memory_mb and not task.grown
    if isinstance(ending, TaskRequeued):
        events.append(ending)
    elif not isinstance(ending, TaskFinished) or ending.status is not TaskStatus.FAILED:
        return (*events, ending)
    elif larger and task.retries < task.max_retries:
        # This is not an infrastructure failure, but more memory may avoid it: retry once, at once, with more.
        again = f"{ending.error}; tried again with {demand_mb} MB"
        events.append(
            TaskRequeued(
                at=ending.at,
                task_id=task.id,
                lease_id=ending.lease_id,
                eligible_at=0,
                counted=True,
                reason=Outcome.OUT_OF_MEMORY.value,
                error=again,
            )
        )
    else:
        why = "no GPU has more" if not larger and not task.grown else "more memory did not help"
        return (*events, ending if task.max_retries == 0 else replace(ending, error=f"{ending.error}; {why}"))
    if larger:
        events.append(DemandChanged(at=ending.at, task_id=task.id, gpu_memory_mb=demand_mb))
    return tuple(events)
