"""What `why` says would start a task, made through the commands that a person has."""

from __future__ import annotations

from msgspec.structs import replace

from building import do, run_pass
from dgpu.core.commands import (
    CancelTasks,
    ChangePriority,
    Command,
    ReleaseTasks,
    ResumeNode,
    SetQuota,
    SubmitTasks,
)
from dgpu.core.decide.schedule import pass_due
from dgpu.core.foresight.forward import end_task
from dgpu.core.foresight.sooner import Change
from dgpu.core.model.ids import NO_TASK, TaskId, parse_task_id
from dgpu.core.model.quota import QuotaMode
from dgpu.core.model.task import Pool, Shape, TaskSpec, TaskStatus
from dgpu.core.state import ClusterState

_MAX_PASSES = 10  # as the service does: one after the other while one is due


def starts_it(state: ClusterState, task_id: int, change: Change) -> bool:
    """Makes the change for good: give it a fork. All in one moment: who may run ahead of a reservation is a matter of
    milliseconds.
    """
    at = state.last_at
    task = state.tasks[TaskId(task_id)]
    shape = _reshaped(state.shapes[task.shape_id], change)
    if shape is not None:
        spec = TaskSpec(
            shape=shape, detail=task.detail, timeout_ms=task.timeout_ms or None, allocation=task.allocation
        )
        do(state, CancelTasks(task_ids=(task.id,)), at)
        run_pass(state, at)
        task_id = state.next_task_id
        do(state, SubmitTasks(entries=((1, spec),)), at)
    elif change.change == "wait":
        for name in str(change.facts["tasks"]).split(", "):
            end_task(state, state.tasks[parse_task_id(name)], state.last_at)
    else:
        do(state, _order(task.id, change), at)
    for _ in range(_MAX_PASSES):
        run_pass(state, at)
        if not pass_due(state):
            break
    return state.tasks[TaskId(task_id)].status is TaskStatus.RUNNING


def _reshaped(shape: Shape, change: Change) -> Shape | None:
    value = change.facts.get(change.change)
    shape = replace(shape, array_id=NO_TASK, array_limit=0)
    match change.change:
        case "gpu_count":
            return replace(shape, gpus=value)
        case "nodes" | "gpu_memory_mb" | "ram_mb":
            return replace(shape, **{change.change: value})
        case "cpus":
            return replace(shape, cpus_milli=int(value) * 1_000)
        case "gpu_model":
            return replace(shape, gpu_models=tuple(str(value).split(", ")))
        case "constraints":
            return replace(shape, constraints=())
        case "pool":
            return replace(shape, pool=Pool(value))
        case _:
            return None


def _order(task_id: TaskId, change: Change) -> Command:
    facts = change.facts
    match change.change:
        case "release":
            return ReleaseTasks(task_ids=(task_id,))
        case "priority":
            return ChangePriority(priority=int(facts["priority"]), task_ids=(task_id,))
        case "resume":
            return ResumeNode(node_id=facts["node"])
        case "quota":
            return SetQuota(online_ppm=int(facts["online_ppm"]))
        case "quota_mode":
            return SetQuota(mode=QuotaMode(facts["mode"]))
        case other:
            raise AssertionError(f"nobody knows how to make the change {other}")
