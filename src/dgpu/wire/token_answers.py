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
    last_used_at: str | None = None  # None: not since the scheduler started


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

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"  # a secret must not reach a log by way of a repr


class WhoAmI(Answer, frozen=True, kw_only=True):
    user: str
    role: str
    tenants: list[str] = msgspec.field(default_factory=list)  # ["*"]: all
    source: str  # uid | token | session | open
    token_id: str | None = None
    isolation: str = ""  # between tasks of different users: users | none | empty: not set
