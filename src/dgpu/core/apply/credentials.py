"""Secrets of tenants and API tokens. No decision about tasks reads them."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.events import Resealed, SecretDeleted, SecretSet, TokenCreated, TokenRevoked
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
            task = state.tasks[task_id] = replace(state.tasks[task_id], detail=resealed.detail)
            if task.worker_of in state.apps:  # its next workers get the same detail
                _reseal_app(state, task.worker_of, resealed.detail)
        for app_id in resealed.app_ids:
            _reseal_app(state, app_id, resealed.detail)


def _reseal_app(state: ClusterState, app_id: str, detail: bytes) -> None:
    app = state.apps[app_id]
    state.apps[app_id] = replace(app, spec=replace(app.spec, detail=detail))


def forget_secrets(state: ClusterState, tenant_id: TenantId) -> None:
    """A later tenant of the same name must not inherit them."""
    for name in [name for name, secret in state.secrets.items() if secret.tenant_id == tenant_id]:
        del state.secrets[name]


def apply_token_created(state: ClusterState, event: TokenCreated) -> None:
    for token_id in event.dropped:
        state.tokens.pop(token_id, None)
    state.tokens[event.token.id] = event.token


def apply_token_revoked(state: ClusterState, event: TokenRevoked) -> None:
    state.tokens[event.token_id] = replace(state.tokens[event.token_id], revoked_at=max(1, event.at))
