"""The fields of a task as submitted: one table for the decoder and for the API's description."""

from __future__ import annotations

from typing import Any, NamedTuple

from dgpu.core.ids import TenantId
from dgpu.core.task import PRIORITY_LEVELS, Restart
from dgpu.wire import fields
from dgpu.wire.fields import Check

DEFAULT_TENANT = TenantId("default")


class TaskField(NamedTuple):
    target: str  # where its value goes; aliases share one
    check: Check
    about: str
    schema: dict[str, Any]


def _number(low: float, high: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
_LATER = "Not supported yet: any other value than the neutral one is refused."

TASK_FIELDS: dict[str, TaskField] = {
    "command": TaskField(
        "command",
        fields.command,
        "A string runs in the shell, a list is a program and its arguments. Required unless `allocation` is true.",
        {
            "oneOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": fields.MOST_ARGUMENTS},
            ]
        },
    ),
    "name": TaskField("name", fields.name, "For people.", {**_TEXT, "maxLength": fields.MOST_NAME_CHARS}),
    "tenant_id": TaskField(
        "tenant_id", fields.tenant, "Whose task it is.", {**_TEXT, "default": DEFAULT_TENANT}
    ),
    "pool": TaskField(
        "pool",
        fields.pool,
        "If absent: online for priority 80 and above, else batch.",
        {"enum": ["online", "batch"]},
    ),
    "priority": TaskField(
        "priority",
        fields.priority,
        "0 to 100, or low (10), normal (50), high (80), critical (100). Higher first, then first come.",
        {"oneOf": [_number(0, 100), {"enum": list(PRIORITY_LEVELS)}], "default": 50},
    ),
    "gpu_count": TaskField(
        "gpus",
        fields.whole(0, fields.MOST_GPUS),
        "GPUs of one node. 0 runs without any.",
        {**_number(0, fields.MOST_GPUS), "default": 1},
    ),
    "gpu_request": TaskField(
        "gpus",
        fields.whole(0, fields.MOST_GPUS),
        "The same as gpu_count.",
        _number(0, fields.MOST_GPUS),
    ),
    "gpu_model": TaskField(
        "gpu_models",
        fields.models,
        "A model, or a list of alternatives. Any model if absent.",
        {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    ),
    "gpu_memory_mb": TaskField(
        "gpu_memory_mb",
        fields.megabytes,
        "Memory needed on each GPU; rounded up to 256 MB.",
        _number(0, fields.MOST_MB),
    ),
    "memory_mb": TaskField(
        "gpu_memory_mb",
        fields.megabytes,
        "The same as gpu_memory_mb.",
        _number(0, fields.MOST_MB),
    ),
    "cpus": TaskField(
        "cpus_milli",
        fields.milli_cpus,
        "CPUs, up to 3 decimals. Not counted if absent.",
        _number(0, fields.MOST_CPUS, "number"),
    ),
    "ram_mb": TaskField(
        "ram_mb",
        fields.megabytes,
        "Main memory; rounded up to 256 MB. Not counted if absent.",
        _number(0, fields.MOST_MB),
    ),
    "env": TaskField("env", fields.env, "Environment. Values are never shown again.", _TEXTS),
    "workdir": TaskField("workdir", fields.workdir, "Absolute path.", _TEXT),
    "timeout_seconds": TaskField(
        "timeout_ms",
        fields.timeout_ms,
        "After this the task fails with reason `timeout`.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": fields.MOST_TIMEOUT_SECONDS},
    ),
    "max_retries": TaskField(
        "max_retries",
        fields.whole(0, fields.MOST_RETRIES),
        "Retries after failures of the infrastructure.",
        {**_number(0, fields.MOST_RETRIES), "default": 3},
    ),
    "restart": TaskField(
        "restart",
        fields.restart,
        "on-failure retries the task's own failures too; always is for services.",
        {"enum": [r.value for r in Restart], "default": "never"},
    ),
    "allocation": TaskField(
        "allocation",
        fields.flag,
        "true: hold the GPUs and run nothing, until cancelled or until the time is over.",
        {"type": "boolean", "default": False},
    ),
    "labels": TaskField("labels", fields.labels, "Names and texts for your own use.", _TEXTS),
    "model_name": TaskField("model_name", fields.short_line, "Shown, and has no effect yet.", _TEXT),
    "task_type": TaskField("task_type", fields.short_line, "Shown, and has no effect yet.", _TEXT),
    "structure_n_atoms": TaskField(
        "structure_n_atoms",
        fields.whole(0, 1_000_000_000),
        "Shown, and has no effect yet.",
        _number(0, 1_000_000_000),
    ),
    "shared": TaskField("", fields.not_yet((False,), "sharing a GPU"), _LATER, {"const": False}),
    "gpu_share": TaskField("", fields.not_yet((1, 1.0), "a share of a GPU"), _LATER, {"const": 1}),
    "nodes": TaskField("", fields.not_yet((1,), "a task over several nodes"), _LATER, {"const": 1}),
    "image": TaskField("", fields.not_yet(("",), "running in a container"), _LATER, {"const": ""}),
    "after": TaskField("", fields.not_yet(([],), "waiting for other tasks"), _LATER, {"maxItems": 0}),
    "array": TaskField("", fields.not_yet(("",), "an array of tasks"), _LATER, {"const": ""}),
    "entrypoint": TaskField("", fields.not_yet(("",), "a function in a warm worker"), _LATER, {"const": ""}),
    "args": TaskField(
        "", fields.not_yet(([], {}), "arguments of a function in a warm worker"), _LATER, {"maxItems": 0}
    ),
    "constraints": TaskField("", fields.not_yet(([], {}), "constraints"), _LATER, {"maxItems": 0}),
}
