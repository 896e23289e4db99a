"""Creating and revoking API tokens."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from dgpu.core.commands import CreateToken, RevokeToken
from dgpu.core.decision import Decision
from dgpu.core.events import TokenCreated, TokenRevoked
from dgpu.core.model.ids import TokenId
from dgpu.core.model.tokens import MAX_TOKENS
from dgpu.core.rejections import TokenExists, TooManyTokens, UnknownToken
from dgpu.core.state import ClusterState


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
