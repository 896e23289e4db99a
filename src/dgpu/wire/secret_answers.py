"""Secrets as responses: never a value."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class SecretAnswer(Answer, frozen=True, kw_only=True):
    name: str
    tenant_id: str
    version: int  # grows with every change of the value
    set_by: str
    set_at: str


class SecretList(Answer, frozen=True, kw_only=True):
    total: int
    secrets: list[SecretAnswer]


class Rotated(Answer, frozen=True, kw_only=True):
    secrets: int  # sealed under the new key
    tasks: int  # whose variables are sealed under the new key
    unreadable: int  # secrets and tasks whose old key is missing
    dropped_keys: int
