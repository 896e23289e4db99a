"""Services, as the API shows them."""

from __future__ import annotations

import msgspec


class ReplicaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    generation: int
    status: str  # waiting | starting | ready | not ready | leaving
    node: str | None
    since: str
    requests: int  # in progress, through the proxy


class ServiceNote(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    text: str


class ServiceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tenant_id: str
    status: str  # ready | rolling | starting | degraded | stalled | stopped
    url: str | None  # one address for all replicas; None: the scheduler has no proxy
    generation: int
    previous_generation: int | None = None  # rollback leads there; None: there is none
    port: int
    health: str
    replicas: list[ReplicaAnswer]
    ready: int
    wanted: int
    min_replicas: int
    max_replicas: int
    requests_per_replica: int
    requests: int  # in progress
    set_by: str
    notes: list[ServiceNote]  # the last steps, with their causes


class ServiceList(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    services: list[ServiceAnswer]
