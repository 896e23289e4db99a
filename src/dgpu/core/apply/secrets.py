"""Secrets of tenants. No decision about placement reads them."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.events import Resealed, SecretDeleted, SecretSet
from dgpu.core.model.ids import TenantId
from dgpu.core.model.secrets import secret_id
from dgpu.core.state import ClusterState


def apply_secret_set(state: ClusterState, event: SecretSet) -> None:
    state.secrets[secret_id(event.secret.tenant_id, event.secret.name)] = event.secret


def apply_secret_deleted(state: ClusterState, event: SecretDeleted) -> None:
    state.secrets.pop(event.secret_id, None)


def apply_resealed(state: ClusterState, event: Resealed) -> None:
    for each in event.secrets:
        state.secrets[each.secret_id] = replace(state.secrets[each.secret_id], sealed=each.sealed)
    for resealed in event.details:
        for task_id in resealed.task_ids:
            state.tasks[task_id] = replace(state.tasks[task_id], detail=resealed.detail)


def forget_secrets(state: ClusterState, tenant_id: TenantId) -> None:
    """A later tenant of the same name must not inherit them."""
    for name in [name for name, secret in state.secrets.items() if secret.tenant_id == tenant_id]:
        del state.secrets[name]
