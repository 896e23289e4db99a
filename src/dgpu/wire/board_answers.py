"""What dashboards are fed with: a snapshot of the cluster in columns, and what changed since.

Codes in columns (status, health, model) are places in the lists of the snapshot; task numbers are bare.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from dgpu.wire.alert_answers import AlertCounts
from dgpu.wire.answers import Answer
from dgpu.wire.cluster_answers import PoolQuota

BOARD_VERSION = 1
CountValue: TypeAlias = int | float | dict[str, int] | None


class GpuColumns(Answer, frozen=True, kw_only=True):
    """One entry for each GPU, those of a node next to each other. None: not measured."""

    id: list[str] = msgspec.field(default_factory=list)
    node: list[int] = msgspec.field(default_factory=list)  # its place in NodeColumns
    index: list[int] = msgspec.field(default_factory=list)
    model: list[int] = msgspec.field(default_factory=list)
    mem_total: list[int] = msgspec.field(default_factory=list)
    status: list[int] = msgspec.field(default_factory=list)
    health: list[int] = msgspec.field(default_factory=list)
    util: list[int | None] = msgspec.field(default_factory=list)
    mem_used: list[int | None] = msgspec.field(default_factory=list)
    mem_foreign: list[int] = msgspec.field(default_factory=list)
    mem_reserved: list[int] = msgspec.field(default_factory=list)
    temp: list[int | None] = msgspec.field(default_factory=list)
    power: list[int | None] = msgspec.field(default_factory=list)
    tasks: list[list[int]] = msgspec.field(default_factory=list)  # the first of them
    task_count: list[int] = msgspec.field(default_factory=list)
    fault: list[str] = msgspec.field(default_factory=list)
    warm: list[list[str]] = msgspec.field(default_factory=list)  # models that are loaded


class NodeColumns(Answer, frozen=True, kw_only=True):
    id: list[str] = msgspec.field(default_factory=list)
    first: list[int] = msgspec.field(default_factory=list)  # the place of its first GPU
    gpus: list[int] = msgspec.field(default_factory=list)
    status: list[int] = msgspec.field(default_factory=list)
    reason: list[str] = msgspec.field(default_factory=list)  # of a drain
    since_ms: list[int] = msgspec.field(default_factory=list)  # when it was last heard from, if it is not now
    labels: list[dict[str, str]] = msgspec.field(default_factory=list)


class Changed(Answer, frozen=True, kw_only=True):
    """Rows of one column, and their new values."""

    i: list[int] = msgspec.field(default_factory=list)
    v: list[Any] = msgspec.field(default_factory=list)


class BoardCounts(Answer, frozen=True, kw_only=True):
    waiting: int  # tasks
    running: int
    ended: int
    pending: dict[str, int]  # tasks that wait, by pool
    running_in: dict[str, int]
    finished_per_min: float
    started_per_min: float
    idle: int  # GPUs
    busy: int
    offline: int
    error: int
    draining: int
    reserved: int
    unconfirmed: int
    nodes: dict[str, int]  # by status
    wait_p50_ms: int | None
    wait_p95_ms: int | None
    util: float | None  # mean of all GPUs that are measured
    browsers: int


class BoardQuota(Answer, frozen=True, kw_only=True):
    total_gpus: int
    online_percent: float
    mode: str
    reclaim: str


class BoardTenant(Answer, frozen=True, kw_only=True):
    id: str
    used: float
    running: int
    waiting: int
    gpu_hours: float
    share: float
    max_gpus: int | None


class BoardUse(Answer, frozen=True, kw_only=True):
    """Pools, quota and the tenants that use most."""

    pools: dict[str, PoolQuota]
    quota: BoardQuota
    tenants: list[BoardTenant]
    tenants_more: int  # that are not listed


class BoardFigures(BoardUse, frozen=True, kw_only=True):
    """All that is neither a node nor a GPU."""

    index: int  # of the journal
    ready: bool
    epoch: int
    counts: BoardCounts
    alerts: AlertCounts | None  # None: nobody watches


class BoardPoint(Answer, frozen=True, kw_only=True):
    at_ms: int
    util: float | None
    waiting: int
    running: int
    wait_p50_ms: int | None
    finished_per_min: float


class BoardHistory(Answer, frozen=True, kw_only=True):
    """The points of the last ten minutes, in columns."""

    step_ms: int
    at_ms: list[int]
    util: list[float | None]
    waiting: list[int]
    running: list[int]
    wait_p50_ms: list[int | None]
    finished_per_min: list[float]


class BoardSnapshot(BoardFigures, frozen=True, kw_only=True):
    v: int = BOARD_VERSION
    seq: int
    at_ms: int
    version: str
    role: str
    build: str  # of the page that this server serves
    isolation: str = ""  # as in WhoAmI
    statuses: list[str]
    node_statuses: list[str]
    healths: list[str]
    models: list[str]
    nodes: NodeColumns
    gpus: GpuColumns
    history: BoardHistory


class BoardDelta(Answer, frozen=True, kw_only=True):
    """What changed since the event before. A part that is missing did not change."""

    seq: int
    index: int
    at_ms: int
    gpus: dict[str, Changed] | UnsetType = UNSET  # by column
    nodes: dict[str, Changed] | UnsetType = UNSET
    ready: bool | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    counts: dict[str, CountValue] | UnsetType = UNSET  # those of BoardCounts that changed
    alerts: AlertCounts | UnsetType | None = UNSET
    pools: dict[str, PoolQuota] | UnsetType = UNSET
    quota: BoardQuota | UnsetType = UNSET
    tenants: list[BoardTenant] | UnsetType = UNSET
    tenants_more: int | UnsetType = UNSET
    point: BoardPoint | UnsetType = UNSET
    changed: list[int] | UnsetType = UNSET  # numbers of tasks that something happened to
    changed_more: bool | UnsetType = UNSET  # there are more of them

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, name) is UNSET for name in _PARTS)


_PARTS = tuple(field for field in BoardDelta.__struct_fields__ if field not in {"seq", "index", "at_ms"})
