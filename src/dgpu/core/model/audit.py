"""An entry of the audit log: which principal did or tried what, from where, and the result.

Entries are journaled and change nothing else. They hold no body, no token and no environment of a task.
"""

from __future__ import annotations

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Fields are only added at the end, with a default: the order is a file format."""

    user: str = ""  # empty: not recognised
    role: str = ""
    source: str = ""  # how the principal was recognised
    token_id: str = ""
    tenants: tuple[str, ...] | None = ()  # of the principal; None: all
    action: str = ""
    call: str = ""  # with the names of its parameters, never with their values
    subject: str = ""  # a task, tenant, node, GPU or token
    tenant_id: str = ""  # of the subject; empty: none, or several
    tasks: int = 0  # submitted or changed
    origin: str = ""  # an address or a Unix user
    request_id: str = ""
    status: int = 0  # of a refusal
    code: str = ""  # of a refusal; empty: done
    count: int = 1  # equal attempts since `since`
    since: int = 0  # 0: one attempt
