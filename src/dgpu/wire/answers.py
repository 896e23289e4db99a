"""The shapes of all answers: what the service encodes is what the SDK decodes."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any

import msgspec

PROBLEM_JSON = "application/problem+json"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that a newer server adds are ignored by an older client."""


class FieldError(Answer, frozen=True, kw_only=True):
    path: str
    detail: str
    code: str = "invalid"


class Problem(Answer, frozen=True, kw_only=True):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = []
    request_id: str = ""


class Submitted(Answer, frozen=True, kw_only=True):
    task_id: str
    status: str
    created_at: str


class SubmittedMany(Answer, frozen=True, kw_only=True):
    task_ids: list[str]


class Cancelled(Answer, frozen=True, kw_only=True):
    cancelled: int


class TaskAnswer(Answer, frozen=True, kw_only=True):
    task_id: str
    name: str = ""
    tenant_id: str
    pool: str
    status: str
    priority: int
    gpu_count: int
    gpu_model: list[str] = []
    gpu_memory_mb: int = 0
    cpus: float = 0
    ram_mb: int = 0
    allocated_gpus: list[str] = []
    node: str | None = None
    attempt: int = 0
    retries: int = 0
    max_retries: int = 0
    restart: str = "never"
    allocation: bool = False
    cancelling: bool = False
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    error: str = ""
    reason: str = ""  # one word: why it ended, or why it waits
    waiting: str = ""  # one line: why it waits
    command: str | list[str] = ""
    env: list[str] = []  # names only
    workdir: str = ""
    timeout_seconds: float | None = None
    labels: dict[str, str] = {}
    model_name: str = ""
    task_type: str = ""
    structure_n_atoms: int = 0


class TaskPage(Answer, frozen=True, kw_only=True):
    tasks: list[TaskAnswer]
    total: int
    next_cursor: str | None = None


class TaskEvent(Answer, frozen=True, kw_only=True):
    index: int  # of the journal
    at: str
    type: str
    facts: dict[str, Any] = {}


class TaskEvents(Answer, frozen=True, kw_only=True):
    task_id: str
    events: list[TaskEvent]


class ExpectedStart(Answer, frozen=True, kw_only=True):
    p50: str
    p90: str
    median_error_seconds: float | None = None


class Change(Answer, frozen=True, kw_only=True):
    change: str
    detail: str


class Why(Answer, frozen=True, kw_only=True):
    task_id: str
    status: str
    summary: str = ""  # one sentence
    position: int | None = None
    ahead: list[str] = []  # the first 100
    ahead_total: int = 0
    blockers: list[dict[str, Any]] = []  # code, detail and the numbers of each
    expected_start: ExpectedStart | None = None
    sooner: list[Change] = []
    nearest: dict[str, Any] | None = None  # the node that lacks least, and what


class QueueEntry(Answer, frozen=True, kw_only=True):
    position: int
    task_id: str
    name: str = ""
    tenant_id: str
    pool: str
    priority: int
    gpu_count: int
    created_at: str
    eligible_at: str | None = None  # backs off until then


class QueuePage(Answer, frozen=True, kw_only=True):
    queue: list[QueueEntry]
    total: int


class GpuAnswer(Answer, frozen=True, kw_only=True):
    id: str
    node: str
    index: int
    uuid: str
    model: str
    memory_total_mb: int
    memory_used_mb: int | None = None  # None: no sample yet
    memory_foreign_mb: int = 0
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    status: str
    fault: str = ""
    tasks: list[str] = []
    loaded_models: list[str] = []


class GpuList(Answer, frozen=True, kw_only=True):
    total: int
    idle: int
    busy: int
    offline: int
    error: int
    draining: int = 0
    reserved: int = 0
    gpus: list[GpuAnswer]


class NodeAnswer(Answer, frozen=True, kw_only=True):
    id: str
    status: str
    address: str = ""
    agent_version: str = ""
    gpus: int
    gpus_free: int
    gpu_models: list[str] = []
    cpus: float = 0
    ram_mb: int = 0
    tasks: list[str] = []
    labels: dict[str, str] = {}
    registered_at: str | None = None
    offline_since: str | None = None
    draining: bool = False
    drain_reason: str = ""


class NodeList(Answer, frozen=True, kw_only=True):
    total: int
    nodes: list[NodeAnswer]


class Removed(Answer, frozen=True, kw_only=True):
    id: str
    removed: bool = True


class Health(Answer, frozen=True, kw_only=True):
    status: str
    version: str


class Ready(Answer, frozen=True, kw_only=True):
    ready: bool
    role: str
    epoch: int
    journal_index: int = 0
    storage_full: bool = False
    history_lag: int | None = None  # records that the history has still to read
    detail: str = ""


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def instant(at_ms: int) -> str:
    """RFC 3339, UTC, milliseconds."""
    second, milli = divmod(at_ms, 1000)
    return f"{_second(second)}.{milli:03d}Z"


def instant_or_none(at_ms: int) -> str | None:
    return instant(at_ms) if at_ms else None


@functools.lru_cache(maxsize=1024)
def _second(second: int) -> str:
    return (_EPOCH + dt.timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")
