"""The identity of a request: a user, a role, and the tenants it may act for."""

from __future__ import annotations

from typing import Literal

import msgspec

from dgpu.wire.roles import Role

Source = Literal["uid", "token", "oidc", "session", "open"]
Tenants = tuple[str, ...] | None  # of a reader; None: all


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    role: Role
    source: Source
    tenants: Tenants = ()  # None: all. The first one is the default of a submit.
    token_id: str = ""  # of an API token, also if a session is bound to one
    scopes: tuple[str, ...] = ()  # the only actions of the role that it may do; (): all of them
    session_id: str = ""  # of a browser's session
    session_until_s: int = 0
    is_owner: bool = False  # the scheduler's own user: a submit takes tenant and user from the body
    ends_wall_s: int = 0  # a signed identity ends then, and its sessions with it; 0: it has no end of its own

    def owns(self, tenant_id: str) -> bool:
        return self.tenants is None or tenant_id in self.tenants

    @property
    def audience(self) -> Tenants:
        """Readers of the same tenants get the same bytes."""
        return None if self.tenants is None else tuple(sorted(set(self.tenants)))


# Of a request to an open path: no identity was asked for.
STRANGER = Principal(user="", role=Role.VIEWER, source="open")


def owner(user: str, source: Source) -> Principal:
    """The scheduler's own user, or a client of a scheduler that asks for no identity."""
    return Principal(user=user, role=Role.ADMIN, source=source, tenants=None, is_owner=True)
