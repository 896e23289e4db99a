"""Why a waiting task does not start now: one type for each rule, with the rule's numbers.

A pass puts the task's line to sleep with the refusal; `why` describes it in words. `scope` determines which lines share
the refusal (see beds.bed_key), and so which changes can lift it. `may_reserve`: the task waits for GPUs or quota that
other tasks hold, and a reservation can secure these. So the refusal may not hold for another task of the line that has
a reservation.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from dgpu.core.model.ids import NO_TASK, NodeId, TaskId, TenantId
from dgpu.core.model.task import Pool


class Scope(enum.IntEnum):
    """Which lines share a refusal, and which changes lift it. Numbers, because keys are hashed with each try."""

    ROOM = 1  # the demand; a node has more to give, a reservation moved
    POOL = 2  # pool and claim; the pool's use, quota or reservations changed
    TENANT = 3  # tenant and claim; the tenant's use, limits or reservations changed, a new month began
    GUARANTEE = 4  # tenant and claim; any use, or the queue of a guaranteed tenant, changed
    OTHER = 5  # tenant, pool and demand; any change
    WORKER = 6  # app and model of a function call; a worker of the app changed, or has a free slot


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    code: ClassVar[str]
    scope: ClassVar[Scope]
    may_reserve: ClassVar[bool] = False


class NoRoom(Refusal, frozen=True, kw_only=True):
    """No node has room that the task may use now. `why` reports reservations that block the task as ReservedFor."""

    code: ClassVar[str] = "no_room"
    scope: ClassVar[Scope] = Scope.ROOM
    may_reserve: ClassVar[bool] = True


class ReservedFor(Refusal, frozen=True, kw_only=True):
    """The task would have room without reservations, and would delay them."""

    code: ClassVar[str] = "reserved_for"
    scope: ClassVar[Scope] = Scope.ROOM
    may_reserve: ClassVar[bool] = True
    task_id: TaskId  # of the first reservation that blocks the task
    node_id: NodeId
    at: int  # 0: unknown
    reservations: int


class PoolQuota(Refusal, frozen=True, kw_only=True):
    """Its pool has too little quota left, including quota that may be borrowed from the other pool."""

    code: ClassVar[str] = "pool_quota"
    scope: ClassVar[Scope] = Scope.POOL
    may_reserve: ClassVar[bool] = True
    pool: Pool
    asked_milli: int
    reserved_milli: int = 0  # for tasks that it would delay


class TenantGpus(Refusal, frozen=True, kw_only=True):
    code: ClassVar[str] = "tenant_gpus"
    scope: ClassVar[Scope] = Scope.TENANT
    may_reserve: ClassVar[bool] = True
    tenant_id: TenantId
    held_milli: int
    limit_gpus: int
    asked_milli: int
    reserved_milli: int = 0


class TenantMemory(Refusal, frozen=True, kw_only=True):
    code: ClassVar[str] = "tenant_memory"
    scope: ClassVar[Scope] = Scope.TENANT
    may_reserve: ClassVar[bool] = True
    tenant_id: TenantId
    held_mb: int
    limit_mb: int
    asked_mb: int
    reserved_mb: int = 0


class TenantRunning(Refusal, frozen=True, kw_only=True):
    code: ClassVar[str] = "tenant_running"
    scope: ClassVar[Scope] = Scope.TENANT
    tenant_id: TenantId
    running: int
    limit: int


class TenantBudget(Refusal, frozen=True, kw_only=True):
    """Numbers are thousandths of a GPU times milliseconds, in the calendar month."""

    code: ClassVar[str] = "tenant_budget"
    scope: ClassVar[Scope] = Scope.TENANT
    tenant_id: TenantId
    used: int
    limit: int
    renews_at: int


class GuaranteedToOthers(Refusal, frozen=True, kw_only=True):
    """The task would take idle GPUs kept for the guarantees of other tenants."""

    code: ClassVar[str] = "guaranteed_to_others"
    scope: ClassVar[Scope] = Scope.GUARANTEE
    kept_milli: int
    idle_milli: int
    asked_milli: int
    tenants: tuple[TenantId, ...]


class PartTooLarge(Refusal, frozen=True, kw_only=True):
    """The claim for the part of this GPU exceeds the quota of its pool or a limit of its tenant. On another GPU, the
    claim may be smaller.
    """

    code: ClassVar[str] = "part_too_large"
    scope: ClassVar[Scope] = Scope.OTHER
    refused: Refusal


class TasksDiffer(Refusal, frozen=True, kw_only=True):
    """The head of a line and a task behind it with a reservation are refused by different rules. A line sleeps with it;
    `why` reports the refusal of each task.
    """

    code: ClassVar[str] = "tasks_differ"
    scope: ClassVar[Scope] = Scope.OTHER


class NoWorker(Refusal, frozen=True, kw_only=True):
    """No worker of the call's app is ready."""

    code: ClassVar[str] = "no_worker"
    scope: ClassVar[Scope] = Scope.WORKER
    starting: int  # workers that have a lease and are not ready
    waiting: int  # workers that wait for a GPU
    failures: int = 0  # workers in a row that ended before they were ready
    error: str = ""  # of the last of them
    eligible_at: int = 0  # no new worker before this time
    retires_for: TaskId = NO_TASK  # a worker takes no more calls, because this task waits for its GPU


class WorkersBusy(Refusal, frozen=True, kw_only=True):
    """Every worker of the app has as many calls as it may."""

    code: ClassVar[str] = "workers_busy"
    scope: ClassVar[Scope] = Scope.WORKER
    workers: int
    limit: int  # workers that the app may have
    starting: int = 0
    run_ms: int = 0  # how long a call takes on average
    overdue: int = 0  # workers with a call that takes much longer


class WaitsForWarm(Refusal, frozen=True, kw_only=True):
    """Workers that have the model loaded are busy. Waiting for one is expected to be shorter than a load elsewhere."""

    code: ClassVar[str] = "waits_for_warm"
    scope: ClassVar[Scope] = Scope.WORKER
    model: str
    warm: int  # workers with the model
    wait_ms: int  # expected
    load_ms: int  # how long a load of the model takes
    patience_ms: int  # from this expected wait on, an idle worker loads the model


NO_ROOM = NoRoom()
TASKS_DIFFER = TasksDiffer()
