"""The row of a task in the history: its columns, and their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dgpu.core.model.task import Shape, Task, TaskDetail
from dgpu.wire.grids import values_of

# Columns that a history of an earlier version may lack, with their definitions. Old rows get the defaults.
ADDED_COLUMNS = {
    "share_milli": "INTEGER NOT NULL DEFAULT 1000",
    "constraints": "TEXT NOT NULL DEFAULT '[]'",
    "node_ids": "TEXT NOT NULL DEFAULT '[]'",
    "array_limit": "INTEGER NOT NULL DEFAULT 0",
    "env_names": "TEXT NOT NULL DEFAULT '[]'",
    "model_name": "TEXT NOT NULL DEFAULT ''",
    "task_type": "TEXT NOT NULL DEFAULT ''",
    "structure_n_atoms": "INTEGER NOT NULL DEFAULT 0",
    "secret_names": "TEXT NOT NULL DEFAULT '[]'",
    "image": "TEXT NOT NULL DEFAULT ''",
    "mounts": "TEXT NOT NULL DEFAULT '[]'",
    "read_only_root": "INTEGER NOT NULL DEFAULT 0",
    "shm_mb": "INTEGER NOT NULL DEFAULT 0",
    "script_bytes": "INTEGER NOT NULL DEFAULT 0",
    "slurm_env": "INTEGER NOT NULL DEFAULT 0",
    "signal": "TEXT NOT NULL DEFAULT '[]'",
    "grace_ms": "INTEGER NOT NULL DEFAULT 0",
    "begins_ms": "INTEGER NOT NULL DEFAULT 0",
    "upload": "TEXT NOT NULL DEFAULT ''",
    "notify": "TEXT NOT NULL DEFAULT '[]'",
    "terminal": "INTEGER NOT NULL DEFAULT 0",
    "grid": "TEXT NOT NULL DEFAULT '{}'",
    "ports": "TEXT NOT NULL DEFAULT '[]'",
    "priority_named": "INTEGER NOT NULL DEFAULT 0",
    "output_file": "TEXT NOT NULL DEFAULT ''",
    "error_file": "TEXT NOT NULL DEFAULT ''",
    "entrypoint": "TEXT NOT NULL DEFAULT ''",
    "worker_of": "TEXT NOT NULL DEFAULT ''",
    "ran_on": "INTEGER NOT NULL DEFAULT 0",
}
_FIXED = (
    "id", "name", "tenant", "pool", "gpus", "gpu_models", "cpus_milli", "ram_mb", "timeout_ms", "max_retries",
    "restart", "allocation", "command", "workdir", "labels", "created_at", "submitted_index", "nodes", "array_id",
    "array_index", "array_count", "share_milli", "constraints", "array_limit", "env_names", "model_name", "task_type",
    "structure_n_atoms", "secret_names", "image", "mounts", "read_only_root", "shm_mb",
    "script_bytes", "slurm_env", "signal", "grace_ms", "begins_ms", "upload", "notify", "terminal", "grid", "ports",
    "priority_named",
    "output_file", "error_file", "entrypoint", "worker_of",
)  # fmt: skip
_CHANGING = (
    "priority", "gpu_memory_mb", "status", "node", "node_ids", "gpu_ids", "attempt", "retries", "started_at",
    "finished_at", "exit_code", "reason", "error", "ran_on",
)  # fmt: skip

_json = msgspec.json.Encoder()
_detail = msgspec.json.Decoder(TaskDetail)


def insert_into(table: str, columns: Iterable[str]) -> str:
    names = tuple(columns)
    return f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608


def _update(columns: Iterable[str]) -> str:
    return f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ?"  # noqa: S608 - constant text


INSERT_TASK = insert_into("tasks", (*_FIXED, *_CHANGING))
UPDATE_TASK = _update(_CHANGING)
COMPLETE_TASK = _update(ADDED_COLUMNS)


class TaskRows:
    """Tasks of one batch share their detail: it is decoded once for consecutive tasks."""

    def __init__(self) -> None:
        self._blob = b""
        self._parsed = TaskDetail()

    def inserted(self, task: Task, shape: Shape, submitted_index: int) -> tuple[Any, ...]:
        """The values of INSERT_TASK."""
        detail = self._detail_of(task)
        return (
            task.id, detail.name, shape.tenant_id, str(shape.pool), shape.gpus, text(shape.gpu_models),
            shape.cpus_milli, shape.ram_mb, task.timeout_ms, task.max_retries, str(task.restart), int(task.allocation),
            text(detail.command), detail.workdir, text(detail.labels), task.created_at, submitted_index, shape.nodes,
            task.array_id, task.array_index, task.array_count, shape.share_milli, text(shape.constraints),
            shape.array_limit, text(sorted(detail.env)), detail.model_name, detail.task_type, detail.structure_n_atoms,
            text(sorted(detail.secrets)),
            detail.image, text(detail.mounts), int(detail.read_only_root), detail.shm_mb,
            len(detail.script.encode()), int(detail.slurm_env),
            text(detail.signal), detail.grace_ms, task.begins_ms, detail.upload, text(detail.notify),
            int(detail.terminal),
            text(values_of(detail.grid, task.array_index)), text(detail.ports),
            int(detail.priority_named),
            detail.output_file, detail.error_file, detail.entrypoint, task.worker_of,
            *_changing(task, shape),
        )  # fmt: skip

    def completed(self, task: Task, shape: Shape) -> tuple[Any, ...]:
        """The values of COMPLETE_TASK."""
        row = dict(zip((*_FIXED, *_CHANGING), self.inserted(task, shape, 0), strict=True))
        return (*(row[name] for name in ADDED_COLUMNS), task.id)

    def _detail_of(self, task: Task) -> TaskDetail:
        if task.detail != self._blob:
            self._blob, self._parsed = task.detail, _detail.decode(task.detail or b"{}")
        return self._parsed


def updated(task: Task, shape: Shape) -> tuple[Any, ...]:
    """The values of UPDATE_TASK."""
    return (*_changing(task, shape), task.id)


def text(value: Any) -> str:
    return _json.encode(value).decode()


def _changing(task: Task, shape: Shape) -> tuple[Any, ...]:
    return (
        shape.priority, shape.gpu_memory_mb, str(task.status), task.node_id, text(task.node_ids), text(task.gpu_ids),
        task.attempt, task.retries, task.started_at, task.finished_at, task.exit_code, task.reason, task.error,
        task.ran_on,
    )  # fmt: skip
