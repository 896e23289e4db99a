"""Options of functions, and the fields of a task that they become."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_FIELDS: Final = {
    "timeout": "timeout_seconds",
    "gpus": "gpu_count",
    "gpu_model": "gpu_model",
    "gpu_memory": "gpu_memory_mb",
    "share": "gpu_share",
    "cpus": "cpus",
    "ram_mb": "ram_mb",
    "retries": "max_retries",
    "priority": "priority",
    "pool": "pool",
    "max_workers": "max_workers",
    "env": "env",
    "labels": "labels",
    "name": "name",
    "tenant": "tenant_id",
    "workdir": "workdir",
    "constraints": "constraints",
}
# Where the code is, and which model: see `code` and `declare`.
_OTHERS: Final = frozenset({"model", "python", "python_path", "upload", "preload"})
_UNITS: Final = {"": 1, "M": 1, "MB": 1, "G": 1024, "GB": 1024}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given. Raises TypeError for an unknown one."""
    known = _FIELDS.keys() | _OTHERS
    unknown = sorted(set(options) - known)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; expected one of {', '.join(sorted(known))}")
    return {name: value for name, value in options.items() if value is not None}


def task_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_FIELDS[name]: value for name, value in options.items() if name in _FIELDS}
    if "gpu_memory_mb" in fields:
        fields["gpu_memory_mb"] = _megabytes(fields["gpu_memory_mb"])
    return fields


def _megabytes(value: int | str) -> int:
    """16000 or "16G"."""
    if isinstance(value, int):
        return value
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", value.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(f"gpu_memory is {value!r}, expected megabytes like 16000, or a text like '16G'")
    return int(found[1]) * unit
