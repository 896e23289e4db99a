"""An API token: the identity and the rights of a program or a person. Its secret is never part of the state."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.ids import TenantId, TokenId

MAX_TOKENS: Final = 10_000  # stored, revoked ones included
HASH_BYTES: Final = 32


class Token(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    id: TokenId  # public: the prefix of the secret, used to look up the token of a request
    name: str
    user: str
    role: str
    keyed_hash: bytes  # HMAC-SHA256 of the secret under the scheduler's key
    tenants: tuple[TenantId, ...] = ()
    all_tenants: bool = False
    created_by: str = ""
    created_at: int = 0
    expires_wall_ms: int = 0  # UTC, by the wall clock; 0: never
    revoked_at: int = 0  # 0: valid
    scopes: tuple[str, ...] = ()  # the only actions of its role that it may do; (): all of them
