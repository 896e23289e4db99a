"""API tokens. No decision about tasks reads them."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.events import TokenCreated, TokenRevoked
from dgpu.core.state import ClusterState


def apply_token_created(state: ClusterState, event: TokenCreated) -> None:
    for token_id in event.dropped:
        state.tokens.pop(token_id, None)
    state.tokens[event.token.id] = event.token


def apply_token_revoked(state: ClusterState, event: TokenRevoked) -> None:
    state.tokens[event.token_id] = replace(state.tokens[event.token_id], revoked_at=max(1, event.at))
