"""Roles: what a principal may do. The table is in service.access.table."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    USER = "user"
    VIEWER = "viewer"


MACHINE_ROLES = frozenset({"agent", "scheduler"})  # reserved for certificates of machines
UNBOUND_ROLES = frozenset({Role.ADMIN, Role.OPERATOR})  # always of all tenants
