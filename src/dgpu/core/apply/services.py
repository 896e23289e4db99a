"""Services."""

from __future__ import annotations

from dgpu.core.events import ServiceDeleted, ServiceSet
from dgpu.core.model.ids import TenantId
from dgpu.core.state import ClusterState


def apply_service_set(state: ClusterState, event: ServiceSet) -> None:
    state.services[event.service.id] = event.service


def apply_service_deleted(state: ClusterState, event: ServiceDeleted) -> None:
    state.services.pop(event.service_id, None)


def forget_services(state: ClusterState, tenant_id: TenantId) -> None:
    """Of a tenant that is removed. It has no tasks, so they have no replicas."""
    for key in [key for key, each in state.services.items() if each.tenant_id == tenant_id]:
        del state.services[key]
