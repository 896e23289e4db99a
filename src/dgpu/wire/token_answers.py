"""API tokens and principals as responses."""

from __future__ import annotations

import msgspec

from dgpu.wire.answers import Answer


class TokenAnswer(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    user: str
    role: str
    tenants: list[str] = msgspec.field(default_factory=list)  # ["*"]: all
    created_by: str = ""
    created_at: str
    expires_at: str | None = None  # None: never
    revoked: bool = False
    last_used_at: str | None = None  # None: never, as far as known. Stored every ten minutes
    scopes: list[str] = msgspec.field(default_factory=list)  # []: all actions of the role


class TokenList(Answer, frozen=True, kw_only=True):
    total: int
    tokens: list[TokenAnswer]


class NewToken(Answer, frozen=True, kw_only=True):
    token: str  # the secret; no other response has it
    id: str
    name: str
    user: str
    role: str
    tenants: list[str] = msgspec.field(default_factory=list)
    expires_at: str | None = None
    scopes: list[str] = msgspec.field(default_factory=list)

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"  # a secret must not reach a log by way of a repr


class WhoAmI(Answer, frozen=True, kw_only=True):
    user: str
    role: str
    tenants: list[str] = msgspec.field(default_factory=list)  # ["*"]: all
    source: str  # uid | token | oidc | session | open
    token_id: str | None = None  # also of a session that a token opened
    scopes: list[str] = msgspec.field(default_factory=list)  # []: all actions of the role
    actions: list[str] = msgspec.field(default_factory=list)  # allowed for own tenants
    isolation: str = (
        ""  # between tasks of different users: users | none | open: auth.mode is none | empty: not set
    )
