"""Setting, deleting and resealing secrets. Creating and revoking API tokens."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from dgpu.core.commands import CreateToken, DeleteSecret, Reseal, RevokeToken, SetSecret
from dgpu.core.decision import Decision
from dgpu.core.events import Resealed, SecretDeleted, SecretSet, TokenCreated, TokenRevoked
from dgpu.core.model.ids import TokenId
from dgpu.core.model.secrets import MAX_SECRETS, MAX_TENANT_SECRETS, ResealedDetail, secret_id, secret_names
from dgpu.core.model.task import TaskSpec
from dgpu.core.model.tokens import MAX_TOKENS
from dgpu.core.rejections import (
    SecretNotSet,
    TokenExists,
    TooManySecrets,
    TooManyTokens,
    UnknownSecret,
    UnknownTenant,
    UnknownToken,
)
from dgpu.core.state import ClusterState


def decide_set_secret(state: ClusterState, command: SetSecret) -> Decision:
    secret = command.secret
    tenant_id = secret.tenant_id
    if tenant_id not in state.tenants and state.tenants and not state.settings.creates_tenants:
        return UnknownTenant(tenant_id=tenant_id)
    before = state.secrets.get(secret_id(tenant_id, secret.name))
    if before is None:
        own = sum(each.tenant_id == tenant_id for each in state.secrets.values())
        if own >= MAX_TENANT_SECRETS:
            return TooManySecrets(tenant_id=tenant_id, limit=MAX_TENANT_SECRETS)
        if len(state.secrets) >= MAX_SECRETS:
            return TooManySecrets(limit=MAX_SECRETS)
    version = 1 if before is None else before.version + 1
    return (SecretSet(at=command.at, secret=replace(secret, version=version, set_at=command.at)),)


def decide_delete_secret(state: ClusterState, command: DeleteSecret) -> Decision:
    known = secret_id(command.tenant_id, command.name)
    if known not in state.secrets:
        return UnknownSecret(tenant_id=command.tenant_id, name=command.name)
    return (SecretDeleted(at=command.at, secret_id=known),)


def decide_reseal(state: ClusterState, command: Reseal) -> Decision:
    """Skips a secret that was set anew or deleted meanwhile, and tasks and apps that were forgotten."""
    secrets = tuple(
        [
            each
            for each in command.secrets
            if (known := state.secrets.get(each.secret_id)) is not None and known.version == each.version
        ]
    )
    details = tuple(
        [kept for each in command.details if (kept := _known(state, each)).task_ids or kept.app_ids]
    )
    if not secrets and not details:
        return ()
    return (Resealed(at=command.at, secrets=secrets, details=details),)


def _known(state: ClusterState, resealed: ResealedDetail) -> ResealedDetail:
    return ResealedDetail(
        task_ids=tuple([task_id for task_id in resealed.task_ids if task_id in state.tasks]),
        detail=resealed.detail,
        app_ids=tuple([app_id for app_id in resealed.app_ids if app_id in state.apps]),
    )


def refused_by_secrets(state: ClusterState, spec: TaskSpec, entry: int) -> SecretNotSet | None:
    for name in secret_names(spec.detail):
        if secret_id(spec.shape.tenant_id, name) not in state.secrets:
            return SecretNotSet(entry=entry, tenant_id=spec.shape.tenant_id, name=name)
    return None


def decide_create_token(state: ClusterState, command: CreateToken) -> Decision:
    token = command.token
    if token.id in state.tokens:
        return TokenExists(token_id=token.id)
    excess = max(0, len(state.tokens) + 1 - MAX_TOKENS)
    dropped: tuple[TokenId, ...] = ()
    if excess:
        revoked = sorted(
            (each for each in state.tokens.values() if each.revoked_at),
            key=lambda each: (each.revoked_at, each.id),
        )
        dropped = tuple(each.id for each in islice(revoked, excess))
        if len(dropped) < excess:
            return TooManyTokens(limit=MAX_TOKENS)
    created = replace(token, created_at=command.at, revoked_at=0)
    return (TokenCreated(at=command.at, token=created, dropped=dropped),)


def decide_revoke_token(state: ClusterState, command: RevokeToken) -> Decision:
    token = state.tokens.get(command.token_id)
    if token is None:
        return UnknownToken(token_id=command.token_id)
    return () if token.revoked_at else (TokenRevoked(at=command.at, token_id=token.id),)
