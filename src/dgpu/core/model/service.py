"""A service: equal tasks behind one address. Its replicas are ordinary tasks that start again when they end."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.ids import TaskId, TenantId
from dgpu.core.model.task import TaskSpec

MAX_SERVICES: Final = 1_000
MAX_REPLICAS: Final = 256
MAX_NOTES: Final = 20  # of one service; the oldest is dropped
DEFAULT_REQUESTS: Final = 8
START_FIRST: Final = "start-first"
STOP_FIRST: Final = "stop-first"  # for a cluster without room for one more replica
STALLED: Final = "stalled"  # the roll-out was stopped, and replicas of the generation before serve


class ServiceSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    task: TaskSpec  # of each replica
    port: int  # of the task
    health: str = ""  # path of an HTTP check; empty: a connection to the port is enough
    interval_ms: int = 5_000  # between checks of one replica
    start_ms: int = 300_000  # a new replica must be ready within this time
    unready_ms: int = 30_000  # a replica that was ready is replaced after this time
    drain_ms: int = 30_000  # for requests in progress, before a replica is stopped
    min_replicas: int = 1
    max_replicas: int = 1
    requests: int = DEFAULT_REQUESTS  # in progress on each replica: more start further replicas
    calm_ms: int = 60_000  # fewer requests for this long stop one replica
    replace: str = START_FIRST


class Replica(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    task_id: TaskId
    generation: int
    since: int  # it is ready, or not ready, since then
    ready: bool = False
    was_ready: bool = False
    leaving_at: int = 0  # gets no new requests since then; 0: it stays


class Service(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    tenant_id: TenantId
    spec: ServiceSpec
    generation: int = 1
    previous: ServiceSpec | None = None
    previous_generation: int = 0
    replicas: tuple[Replica, ...] = ()
    wanted: int = 1  # replicas now, between min and max
    status: str = ""  # "" or STALLED
    failures: int = 0  # replicas in a row that never became ready, or were replaced
    retry_at: int = 0  # no replica is started before
    calm_since: int = 0  # fewer requests since then; 0: not now
    notes: tuple[tuple[int, str], ...] = ()  # steps with their time and cause, the last ones
    set_by: str = ""

    @property
    def id(self) -> str:
        return service_id(self.tenant_id, self.name)

    @property
    def active(self) -> tuple[ServiceSpec, int]:
        """The specification of the replicas that should run, and its generation."""
        if self.status == STALLED and self.previous is not None:
            return self.previous, self.previous_generation
        return self.spec, self.generation


def service_id(tenant_id: str, name: str) -> str:
    return f"{tenant_id}/{name}"
