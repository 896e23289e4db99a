"""Named fields of calls that take many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Literal, TypedDict


class TaskFields(TypedDict, total=False):
    """A task as submitted; see the table of the API's description."""

    command: str | Sequence[str]
    script: str
    slurm_env: bool
    name: str
    tenant_id: str
    pool: Literal["online", "batch"]
    priority: int | str
    gpu_count: int
    gpu_model: str | Sequence[str]
    gpu_memory_mb: int
    cpus: float
    ram_mb: int
    env: Mapping[str, str]
    secrets: Sequence[str] | Mapping[str, Mapping[str, str]]
    workdir: str
    timeout_seconds: float
    signal: str
    grace_seconds: float
    begin_at: str | datetime
    notify: str | Sequence[str]
    max_retries: int
    restart: Literal["never", "on-failure", "always"]
    allocation: bool
    labels: Mapping[str, str]
    model_name: str
    task_type: str
    structure_n_atoms: int
    shared: bool
    gpu_share: float
    nodes: int
    image: str
    image_secret: str
    mounts: Sequence[str]
    read_only_root: bool
    shm_mb: int
    upload: str | PathLike[str]
    terminal: bool
    ports: Sequence[int]
    output_file: str
    error_file: str
    after: str | Sequence[str | Mapping[str, str]]
    array: str
    grid: Mapping[str, str | Sequence[str | int | float]]
    held: bool
    entrypoint: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    args_msgpack: str
    args_ref: str
    python: str
    python_path: Sequence[str]
    max_workers: int
    preload: Sequence[str]
    constraints: Sequence[Any]


class Filters(TypedDict, total=False):
    status: str | None  # several: failed,cancelled
    priority: int | str | None
    tenant: str | None
    pool: str | None
    name: str | None  # `*` and `?` stand for any characters
    user: str | None
    label: str | None  # team=nlp, or several: team=nlp,run=7
    array: str | int | None
    q: str | None
    node: str | None
    gpu: str | None
    sort: Literal["newest", "oldest"] | None
    fold: Literal["true"] | None  # an array is one row


class OutputChoice(TypedDict, total=False):
    """Lines of a task's output. An absent field chooses all."""

    tail: int | None
    head: int | None
    attempt: int | None  # None: the last one
    rank: int | None
    since: str | datetime | None
    times: bool
    stream: Literal["stdout", "stderr"] | None
    grep: str | None


class QuotaFields(TypedDict, total=False):
    """An absent field does not change."""

    online_percent: float | None
    mode: Literal["strict", "borrow"] | None
    reclaim: Literal["wait", "stop"] | None


class TenantFields(TypedDict, total=False):
    """Limits of a tenant. None or an absent field means no limit."""

    max_gpus: int | None
    guaranteed_gpus: int | None
    weight: float | None
    max_running: int | None
    max_waiting: int | None
    max_gpu_memory_mb: int | None
    max_priority: int | str | None
    pools: Sequence[Literal["online", "batch"]] | None
    gpu_hours_per_month: float | None
