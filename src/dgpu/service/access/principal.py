"""The identity of a request: a user, a role, and the tenants it may act for."""

from __future__ import annotations

from typing import Literal

import msgspec

from dgpu.wire.roles import Role

Source = Literal["uid", "token", "session", "open"]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    role: Role
    source: Source
    tenants: tuple[str, ...] | None = ()  # None: all. The first one is the default of a submit.
    token_id: str = ""  # of an API token

    def owns(self, tenant_id: str) -> bool:
        return self.tenants is None or tenant_id in self.tenants


# Of a request to an open path: no identity was asked for.
STRANGER = Principal(user="", role=Role.VIEWER, source="open")


def owner(user: str, source: Source) -> Principal:
    """The scheduler's own user, or a client of a scheduler that asks for no identity."""
    return Principal(user=user, role=Role.ADMIN, source=source, tenants=None)
