"""The parts of a state, which a snapshot holds."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.app import App
from dgpu.core.model.dependencies import Awaited
from dgpu.core.model.estimates import Estimate
from dgpu.core.model.gang import Gang
from dgpu.core.model.health import GpuHealth
from dgpu.core.model.idempotency import IdempotencyKey
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, SecretId, ShapeId, TaskId, TenantId, TokenId
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.quota import Quota
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.run_times import RunTimes
from dgpu.core.model.secrets import Secret
from dgpu.core.model.service import Service
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Shape, Task
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.typical import Typical
from dgpu.core.model.usage import Meter, Usage
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.model.worker import LoadTime, Worker


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a state that are not derived: the content of a snapshot."""

    tasks: dict[TaskId, Task]
    shapes: dict[ShapeId, Shape]
    nodes: dict[NodeId, Node]
    gpus: dict[GpuId, Gpu]
    leases: dict[LeaseId, Lease]
    keys: dict[str, IdempotencyKey]
    settings: Settings
    epoch: int
    next_task_id: TaskId
    next_lease_id: LeaseId
    next_shape_id: ShapeId
    last_at: int
    health: dict[GpuId, GpuHealth]  # of GPUs with a past
    typical: Typical  # typical tasks, for `placement: pack`
    estimates: dict[str, Estimate]  # learned memory needs
    after: dict[TaskId, Awaited]  # dependencies of waiting tasks
    gangs: dict[TaskId, Gang]  # of running tasks on several nodes
    quota: Quota  # current quota; `settings.quota` is the configured one
    tenants: dict[TenantId, Tenant]
    usages: dict[TenantId, Usage]
    meter: Meter
    run_times: dict[str, RunTimes]  # learned run times
    reservations: dict[TaskId, Reservation]  # of waiting tasks without room
    cluster_id: str  # created once with the first epoch
    nonce: str  # of the present epoch
    nonces: dict[int, str]  # of the latest epochs of this journal, with the present one
    wall: dict[int, WallSpan]  # by the `at` of its begin
    no_pass_before: int  # after an accepted loss: runs unknown to the journal may be active until then

    tokens: dict[TokenId, Token]  # of the API, also revoked ones
    secrets: dict[SecretId, Secret]  # of tenants; ciphertext only
    services: dict[str, Service]  # by tenant and name
    alert_records: dict[str, bytes]  # of the alert watch, by name
    apps: dict[str, App]  # of function calls that wait or run, and of workers
    workers: dict[TaskId, Worker]  # that wait or run
    load_times: dict[str, LoadTime]  # by model


PART_NAMES: Final = Parts.__struct_fields__

# Parts added after the first snapshots, with their empty values. An older snapshot lacks them. A digest contains their
# names only when they are not empty.
LATER_PARTS: Final[dict[str, object]] = {
    "health": {},
    "typical": Typical(),
    "estimates": {},
    "after": {},
    "gangs": {},
    "quota": Quota(),
    "tenants": {},
    "usages": {},
    "meter": Meter(),
    "run_times": {},
    "reservations": {},
    "cluster_id": "",
    "nonce": "",
    "nonces": {},
    "wall": {},
    "no_pass_before": 0,
    "tokens": {},
    "secrets": {},
    "services": {},
    "alert_records": {},
    "apps": {},
    "workers": {},
    "load_times": {},
}
