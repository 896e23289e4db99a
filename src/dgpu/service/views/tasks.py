"""Tasks as responses. Values of the environment are left out: only their names are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dgpu.core.foresight.reserved import Reserved
from dgpu.core.model.dependencies import Awaited
from dgpu.core.model.ids import GpuId, NodeId, TaskId, task_name
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.task import (
    PRIORITY_LEVELS,
    WHOLE_MILLI,
    Constraint,
    Shape,
    Task,
    TaskDetail,
    TaskStatus,
)
from dgpu.core.rules.capacity import in_words
from dgpu.core.state import ClusterState
from dgpu.service.history.reader import PastTask
from dgpu.service.views.workers import CallFacts
from dgpu.wire.answers import (
    Dependency,
    QueueEntry,
    ReservationAnswer,
    TaskAnswer,
    instant,
    instant_or_none,
    wall_instant,
)
from dgpu.wire.container_fields import mount_text
from dgpu.wire.grids import filled, named, values_of
from dgpu.wire.notify_fields import notify_text
from dgpu.wire.stop_fields import signal_text
from dgpu.wire.task_names import element_name

_decode_detail = msgspec.json.Decoder(TaskDetail).decode
_LEVEL_NAMES = {number: name for name, number in PRIORITY_LEVELS.items()}


GpuNames = Mapping[GpuId, str]


def gpu_names(state: ClusterState, gpu_ids: Iterable[GpuId]) -> GpuNames:
    """Of these GPUs, if the cluster still has them: n1:0 is the first GPU of node n1."""
    found = (state.gpus.get(gpu_id) for gpu_id in gpu_ids)
    return {gpu.id: f"{gpu.node_id}:{gpu.index}" for gpu in found if gpu is not None}


def task_answer(
    task: Task,
    shape: Shape,
    names: GpuNames,
    *,
    awaited: Awaited | None = None,
    waits: Mapping[str, Any] | None = None,
    call: CallFacts | None = None,
) -> TaskAnswer:
    """`waits`: why a task waits, or why it is on an unreachable node: waiting_code, waiting, blockers."""
    detail = _decode_detail(task.detail)
    pending = task.status is TaskStatus.PENDING
    return TaskAnswer(
        task_id=task_name(task.id),
        tenant_id=shape.tenant_id,
        pool=shape.pool.value,
        status=task.status.value,
        **_priority(shape.priority, detail),
        gpu_count=shape.gpus,
        gpu_model=list(shape.gpu_models),
        gpu_memory_mb=shape.gpu_memory_mb,
        shared=shape.share_milli < WHOLE_MILLI,
        gpu_share=shape.share_milli / WHOLE_MILLI,
        constraints=_constraints(shape.constraints),
        cpus=shape.cpus_milli / 1000,
        ram_mb=shape.ram_mb,
        nodes=shape.nodes,
        **_gpus(() if pending else task.gpu_ids, names),
        allocated_nodes=[] if pending else _nodes(task.node_ids, task.node_id),
        node=task.node_id,
        attempt=task.attempt,
        retries=task.retries,
        max_retries=task.max_retries,
        restart=task.restart.value,
        allocation=task.allocation,
        held=task.held,
        after=[] if awaited is None else _after(awaited),
        **_array(task.array_id, task.array_index, task.array_count),
        array_limit=shape.array_limit or None,
        cancelling=task.cancelling,
        created_at=instant(task.created_at),
        started_at=instant_or_none(task.started_at),
        finished_at=instant_or_none(task.finished_at),
        exit_code=task.exit_code,
        error=task.error,
        **_waits(task, waits or {}),
        timeout_seconds=task.timeout_ms / 1000 if task.timeout_ms else None,
        begin_at=wall_instant(task.begins_ms) if task.begins_ms else None,
        **_of_detail(detail, task, call),
    )


def _waits(task: Task, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "reason": task.reason or told.get("waiting_code", ""),
        "waiting": told.get("waiting", ""),
        "blockers": told.get("blockers", []),
    }


def _of_detail(detail: TaskDetail, task: Task, call: CallFacts | None) -> dict[str, Any]:
    return {
        **(_ran_on(task) if call is None else call.shown()),
        "worker_of": task.worker_of,
        **_title(detail.name, detail.command, values_of(detail.grid, task.array_index)),
        "script_bytes": len(detail.script.encode()),
        "env": sorted(detail.env),
        "secrets": sorted(detail.secrets),
        "workdir": detail.workdir,
        "labels": detail.labels,
        **_program(detail),
    }


def _ran_on(task: Task | PastTask) -> dict[str, Any]:
    """The worker of a call that has ended."""
    return {"worker": task_name(task.ran_on)} if task.ran_on and task.status.is_final else {}


def _title(name: str, command: str | tuple[str, ...], values: dict[str, str]) -> dict[str, Any]:
    """The name and the command with the values of a grid."""
    command = filled(command, values)
    return {
        "name": named(name, values),
        "command": command if isinstance(command, str) else list(command),
        "grid": values,
    }


def _priority(value: int, of: TaskDetail | PastTask) -> dict[str, Any]:
    """A later change keeps the form of the submit: a name if there is one for the new number."""
    return {
        "priority": _LEVEL_NAMES.get(value, value) if of.priority_named else value,
        "priority_value": value,
    }


def _constraints(constraints: tuple[Constraint, ...]) -> list[str]:
    return [in_words((each,)) for each in constraints]


def _gpus(gpu_ids: tuple[GpuId, ...], names: GpuNames) -> dict[str, Any]:
    return {
        "allocated_gpus": list(gpu_ids),
        "allocated_gpu_names": [names.get(gpu_id, gpu_id) for gpu_id in gpu_ids],
    }


def _nodes(node_ids: tuple[NodeId, ...], node_id: NodeId | None) -> list[str]:
    if node_ids:
        return list(node_ids)
    return [] if node_id is None else [node_id]


def _after(awaited: Awaited) -> list[Dependency]:
    return [Dependency(task_id=task_name(each.task_id), when=each.when.value) for each in awaited.on]


def _array(array_id: TaskId, index: int, count: int) -> dict[str, Any]:
    if not array_id:
        return {}
    return {
        "array_id": task_name(array_id),
        "element_id": element_name(array_id, index),
        "array_index": index,
        "array_count": count,
    }


def _program(of: TaskDetail | PastTask) -> dict[str, Any]:
    return {
        "model_name": of.model_name,
        "task_type": of.task_type,
        "structure_n_atoms": of.structure_n_atoms,
        "image": of.image,
        "mounts": list(map(mount_text, of.mounts)),
        "read_only_root": of.read_only_root,
        "shm_mb": of.shm_mb,
        "slurm_env": of.slurm_env,
        "signal": signal_text(of.signal),
        "notify": list(map(notify_text, of.notify)),
        "grace_seconds": of.grace_ms / 1000 if of.grace_ms else None,
        "upload": of.upload,
        "terminal": of.terminal,
        "ports": list(of.ports),
        "output_file": of.output_file,
        "error_file": of.error_file,
        "entrypoint": of.entrypoint,
    }


def reservation_answer(reserved: Reserved | None) -> ReservationAnswer | None:
    if reserved is None:
        return None
    return ReservationAnswer(
        at=None if reserved.at is None else instant(reserved.at),
        nodes=list(reserved.node_ids),
        gpus=list(reserved.gpu_ids),
        waits_for=[task_name(task_id) for task_id in reserved.waits_for],
        waits_for_total=reserved.waits_for_total,
        made_at=instant(reserved.made_at),
    )


def queue_entry(task: Task, shape: Shape, position: int, reserved: Reservation | None = None) -> QueueEntry:
    detail = _decode_detail(task.detail)
    title = _title(detail.name, detail.command, values_of(detail.grid, task.array_index))
    return QueueEntry(
        position=position,
        task_id=task_name(task.id),
        name=title["name"],
        command=title["command"],
        allocation=task.allocation,
        array_index=task.array_index if task.array_id else None,
        array_id=task_name(task.array_id) if task.array_id else None,
        tenant_id=shape.tenant_id,
        pool=shape.pool.value,
        **_priority(shape.priority, detail),
        gpu_count=shape.gpus,
        nodes=shape.nodes,
        created_at=instant(task.created_at),
        eligible_at=instant_or_none(task.eligible_at),
        reserved_start=None if reserved is None else instant_or_none(reserved.at),
        reserved_nodes=[] if reserved is None else [place.node_id for place in reserved.places],
    )


def past_task_answer(task: PastTask, names: GpuNames) -> TaskAnswer:
    """An ended task does not wait, and is neither held nor cancelled: those fields keep their defaults."""
    return TaskAnswer(
        task_id=task_name(task.id),
        tenant_id=task.tenant_id,
        pool=task.pool.value,
        status=task.status.value,
        **_priority(task.priority, task),
        gpu_count=task.gpus,
        gpu_model=list(task.gpu_models),
        gpu_memory_mb=task.gpu_memory_mb,
        shared=task.share_milli < WHOLE_MILLI,
        gpu_share=task.share_milli / WHOLE_MILLI,
        constraints=_constraints(task.constraints),
        cpus=task.cpus_milli / 1000,
        ram_mb=task.ram_mb,
        nodes=task.nodes,
        **_gpus(task.gpu_ids, names),
        allocated_nodes=_nodes(task.node_ids, task.node_id),
        node=task.node_id,
        attempt=task.attempt,
        retries=task.retries,
        max_retries=task.max_retries,
        restart=task.restart.value,
        allocation=task.allocation,
        **_array(task.array_id, task.array_index, task.array_count),
        array_limit=task.array_limit or None,
        created_at=instant(task.created_at),
        started_at=instant_or_none(task.started_at),
        finished_at=instant_or_none(task.finished_at),
        exit_code=task.exit_code,
        error=task.error,
        reason=task.reason,
        **_title(task.name, task.command, task.grid),
        script_bytes=task.script_bytes,
        env=list(task.env_names),
        secrets=list(task.secret_names),
        workdir=task.workdir,
        timeout_seconds=task.timeout_ms / 1000 if task.timeout_ms else None,
        begin_at=wall_instant(task.begins_ms) if task.begins_ms else None,
        labels=task.labels,
        worker_of=task.worker_of,
        **_ran_on(task),
        **_program(task),
    )
