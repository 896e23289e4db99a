"""Leaves out the names of other tenants and their tasks. Load that they cause is told as counts."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace

from dgpu.core.foresight.blockers import Blocker
from dgpu.core.foresight.explain import Explanation
from dgpu.core.model.ids import NO_TASK, TaskId, parse_task_id, task_name
from dgpu.core.state import ClusterState
from dgpu.wire.answers import TaskAnswer, TaskEvent
from dgpu.wire.cluster_answers import GpuAnswer, GpuList, NodeAnswer

Tenants = tuple[str, ...] | None  # those of the reader; None: all

# Blockers whose words name a tenant or a task of another tenant.
_WITHOUT_NAMES: Final = {
    "guaranteed_to_others": "idle GPUs are kept for the guarantees of other tenants",
    "reserved_for": "it would delay a task that has a reservation; it may run ahead only if it ends by then",
}

_TASK: Final = re.compile(r"\btask-[0-9]+")


def is_own(tenants: Tenants, state: ClusterState, task_id: TaskId) -> bool:
    """A task that is out of memory counts as foreign."""
    if tenants is None:
        return True
    task = state.tasks.get(task_id)
    return task is not None and state.shapes[task.shape_id].tenant_id in tenants


def reason_told_to(tenants: Tenants, reason: dict[str, str]) -> dict[str, str]:
    plain = None if tenants is None else _WITHOUT_NAMES.get(reason.get("waiting_code", ""))
    return reason if plain is None else {**reason, "waiting": plain}


def told_to(tenants: Tenants, state: ClusterState, found: Explanation) -> Explanation:
    if tenants is None:
        return found
    blockers = tuple(map(_without_names, found.blockers))
    reservation = found.reservation
    if reservation is not None:
        awaited = tuple(each for each in reservation.waits_for if is_own(tenants, state, each))
        reservation = replace(reservation, waits_for=awaited)
    summary = found.summary
    if found.blockers and found.position is not None:
        summary = f"{task_name(found.task_id)} waits: {'; '.join(each.detail for each in blockers)}"
    ahead = tuple(each for each in found.ahead if is_own(tenants, state, each))
    return replace(found, summary=summary, ahead=ahead, blockers=blockers, reservation=reservation)


def _without_names(blocker: Blocker) -> Blocker:
    plain = _WITHOUT_NAMES.get(blocker.code)
    return blocker if plain is None else replace(blocker, detail=plain, numbers={})


def gpus_told_to(tenants: Tenants, state: ClusterState, found: GpuList) -> GpuList:
    """Which cards are busy is no secret; whose tasks and models are on them is."""
    if tenants is None:
        return found
    return replace(found, gpus=[_gpu_told_to(tenants, state, gpu) for gpu in found.gpus])


def node_told_to(tenants: Tenants, state: ClusterState, node: NodeAnswer) -> NodeAnswer:
    if tenants is None:
        return node
    return replace(node, tasks=_own(tenants, state, node.tasks), drain_reason=_no_tasks(node.drain_reason))


def _own(tenants: Tenants, state: ClusterState, names: list[str]) -> list[str]:
    return [name for name in names if is_own(tenants, state, parse_task_id(name) or NO_TASK)]


def _gpu_told_to(tenants: Tenants, state: ClusterState, gpu: GpuAnswer) -> GpuAnswer:
    own = _own(tenants, state, gpu.tasks)
    health = replace(gpu.health, evidence="", remark=_no_tasks(gpu.health.remark))
    return replace(gpu, tasks=own, loaded_models=[], fault=_no_tasks(gpu.fault), health=health)


def task_told_to(tenants: Tenants, task: TaskAnswer) -> TaskAnswer:
    """Texts of the scheduler name the task for which this one was stopped."""
    if tenants is None or not (task.error or task.attempts):
        return task
    attempts = [replace(each, error=_no_tasks(each.error)) for each in task.attempts]
    return replace(task, error=_no_tasks(task.error), attempts=attempts)


def events_told_to(tenants: Tenants, events: list[TaskEvent]) -> list[TaskEvent]:
    if tenants is None:
        return events
    return [replace(event, facts=_facts_told(event.facts)) for event in events]


def _facts_told(facts: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in facts.items() if name != "for_task"}
    if "error" in told:
        told["error"] = _no_tasks(str(told["error"]))
    return told


def _no_tasks(text: str) -> str:
    return _TASK.sub("another task", text) if "task-" in text else text
