"""Leaves out the names of other tenants and their tasks. Load that they cause is told as counts."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, Final

from msgspec.structs import replace

from dgpu.core.foresight.blockers import Blocker, plural
from dgpu.core.foresight.explain import Explanation
from dgpu.core.model.ids import NO_TASK, TaskId, TenantId, parse_task_id, task_name
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Tenants
from dgpu.wire.answers import TaskAnswer, TaskEvent
from dgpu.wire.cluster_answers import GpuAnswer, GpuList, NodeAnswer

# Blockers whose words name a tenant or a task of another tenant.
_WITHOUT_NAMES: Final = {
    "guaranteed_to_others": "idle GPUs are kept for the guarantees of other tenants",
    "reserved_for": "it would delay a task that has a reservation; it may run ahead only if it ends by then",
}
# Blockers that name tasks for which the task itself waits. They are of the same tenant.
_OF_OWN_TASKS: Final = frozenset({"dependency", "dependency_failed", "array_limit"})
# With the program of the task, which evidence against a GPU names behind it.
_TASK: Final = re.compile(r"\btask-[0-9]+(?: \(.*)?", re.DOTALL)


def is_own(tenants: Tenants, state: ClusterState, task_id: TaskId) -> bool:
    """A task that is out of memory counts as foreign."""
    return tenants is None or tenant_of(state, task_id) in tenants


def tenant_of(state: ClusterState, task_id: TaskId) -> TenantId | None:
    """None: the task is out of memory, or never was."""
    task = state.tasks.get(task_id)
    return None if task is None else state.shapes[task.shape_id].tenant_id


def without_tasks(text: str) -> str:
    """A text of the scheduler about a node, a GPU or a stop."""
    return _TASK.sub("another task", text) if "task-" in text else text


def reason_told_to(tenants: Tenants, reason: dict[str, Any]) -> dict[str, Any]:
    if tenants is None or "waiting" not in reason:
        return reason
    code = reason["waiting_code"]
    blockers = [{"code": code, **_facts(code, each)} for each in reason["blockers"]]
    return {**reason, "waiting": _detail(code, reason["waiting"]), "blockers": blockers}


def told_to(
    tenants: Tenants, state: ClusterState, found: Explanation, new: Container[TaskId] = ()
) -> Explanation:
    """`new`: own tasks of a prediction, which are not in the state."""
    if tenants is None:
        return found
    ahead = tuple(each for each in found.ahead if each in new or is_own(tenants, state, each))
    are_all_known = len(found.ahead) == found.ahead_total
    blockers = tuple(
        _ahead(each, len(ahead)) if each.code == "tasks_ahead" and are_all_known else _without_names(each)
        for each in found.blockers
    )
    reservation = found.reservation
    if reservation is not None:
        awaited = tuple(each for each in reservation.waits_for if is_own(tenants, state, each))
        reservation = replace(reservation, waits_for=awaited)
    if found.blockers and found.position is not None:
        summary = f"{task_name(found.task_id)} waits: {'; '.join(each.detail for each in blockers)}"
    else:
        name = task_name(found.task_id)  # how every summary begins
        summary = name + without_tasks(found.summary.removeprefix(name))
    return replace(found, summary=summary, ahead=ahead, blockers=blockers, reservation=reservation)


def _ahead(blocker: Blocker, own: int) -> Blocker:
    others = int(blocker.numbers["ahead"]) - own
    parts = [f"{plural(own, 'own task')}"] if own else []
    parts += [f"{plural(others, 'task')} of other tenants"] if others else []
    verb = "comes" if own + others == 1 else "come"
    return replace(
        blocker, detail=f"{' and '.join(parts)} {verb} first", numbers={**blocker.numbers, "own": own}
    )


def _without_names(blocker: Blocker) -> Blocker:
    numbers = _facts(blocker.code, blocker.numbers)
    return replace(blocker, detail=_detail(blocker.code, blocker.detail), numbers=numbers)


def _facts(code: str, facts: dict[str, Any]) -> dict[str, Any]:
    if code in _WITHOUT_NAMES:
        return {}
    if code in _OF_OWN_TASKS:
        return facts
    return {name: without_tasks(value) if isinstance(value, str) else value for name, value in facts.items()}


def _detail(code: str, detail: str) -> str:
    if code in _OF_OWN_TASKS:
        return detail
    return _WITHOUT_NAMES.get(code) or without_tasks(detail)


def gpus_told_to(tenants: Tenants, state: ClusterState, found: GpuList) -> GpuList:
    """Which cards are busy is no secret; whose tasks and models are on them is."""
    if tenants is None:
        return found
    return replace(found, gpus=[_gpu_told_to(tenants, state, gpu) for gpu in found.gpus])


def node_told_to(tenants: Tenants, state: ClusterState, node: NodeAnswer) -> NodeAnswer:
    if tenants is None:
        return node
    own = _own(tenants, state, node.tasks)
    return replace(node, tasks=own, loaded_models=[], drain_reason=without_tasks(node.drain_reason))


def _own(tenants: Tenants, state: ClusterState, names: list[str]) -> list[str]:
    return [name for name in names if is_own(tenants, state, parse_task_id(name) or NO_TASK)]


def _gpu_told_to(tenants: Tenants, state: ClusterState, gpu: GpuAnswer) -> GpuAnswer:
    own = _own(tenants, state, gpu.tasks)
    health = replace(gpu.health, evidence="", remark=without_tasks(gpu.health.remark))
    return replace(gpu, tasks=own, loaded_models=[], fault=without_tasks(gpu.fault), health=health)


def task_told_to(tenants: Tenants, task: TaskAnswer) -> TaskAnswer:
    """Texts of the scheduler name the task for which this one was stopped."""
    if tenants is None or not (task.error or task.attempts):
        return task
    attempts = [replace(each, error=without_tasks(each.error)) for each in task.attempts]
    return replace(task, error=without_tasks(task.error), attempts=attempts)


def events_told_to(tenants: Tenants, events: list[TaskEvent]) -> list[TaskEvent]:
    if tenants is None:
        return events
    return [replace(event, facts=own_facts(event.facts)) for event in events]


def own_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of an event of an own task: a stop names the task for which it was made."""
    told = {name: value for name, value in facts.items() if name != "for_task"}
    if "error" in told:
        told["error"] = without_tasks(str(told["error"]))
    return told
