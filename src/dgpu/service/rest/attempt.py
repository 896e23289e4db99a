"""The request as an entry of the audit log. A context variable holds it while the request is answered, so that every
command of the request carries it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.ids import parse_task_id, task_name
from dgpu.service.access.matching import Matched, match
from dgpu.service.access.principal import STRANGER, Principal
from dgpu.service.access.table import Action
from dgpu.service.audit.names import clean
from dgpu.service.rest.access import OIDC_PATH, READING_METHODS
from dgpu.service.rest.failures import Peer

UNKNOWN: Final = "unknown"
_READ_BY_POST: Final = frozenset({Action.PREDICT})
_MAX_TENANTS: Final = 16
_NO_CALL: Final = Matched(UNKNOWN, None)
_NOBODY: Final = Peer(uid=None)


class Attempt:
    """One request."""

    __slots__ = ("_matched", "_scope", "is_recorded", "tenant_id")

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._matched: Matched | None = None
        self.is_recorded = False  # a command of the request was accepted
        self.tenant_id = ""  # of its subject, as far as it is known

    @property
    def matched(self) -> Matched:
        if self._matched is None:
            self._matched = match(self._scope["method"], self._scope["path"]) or _NO_CALL
        return self._matched

    @property
    def changes(self) -> bool:
        """Whether the call, if it is accepted, changes anything."""
        return (
            self._scope["method"] not in READING_METHODS
            and self.matched is not _NO_CALL
            and self.matched.action not in _READ_BY_POST
            and self._scope["path"] != OIDC_PATH  # only tells where to sign in, to any stranger
        )

    @property
    def principal(self) -> Principal:
        found: Principal = self._scope["state"].get("principal", STRANGER)
        return found

    def entry(self, *, status: int = 0, code: str = "", token_id: str = "") -> AuditEntry:
        who, matched = self.principal, self.matched
        is_known = who is not STRANGER
        peer: Peer = self._scope["state"].get("peer", _NOBODY)
        name, tenant_id = _subject(matched), self.tenant_id
        return AuditEntry(
            user=who.user,
            role=who.role.value if is_known else "",
            source=who.source if is_known else "",
            token_id=who.token_id or token_id,
            tenants=None if who.tenants is None or len(who.tenants) > _MAX_TENANTS else who.tenants,
            action=(matched.action or Action.OPEN_SESSION).value if matched is not _NO_CALL else UNKNOWN,
            call=matched.call,
            subject=name,
            tenant_id=tenant_id or clean(matched.tenant_id),
            origin=peer.address if peer.uid is None else f"uid {peer.uid}",
            request_id=self._scope["state"]["request_id"],
            status=status,
            code=code,
        )


CURRENT: Final[ContextVar[Attempt | None]] = ContextVar("attempt", default=None)


def note_tenant(tenant_id: str | None) -> None:
    """The tenant of the subject of this request, for its entry in the audit log."""
    attempt = CURRENT.get()
    if attempt is not None and tenant_id is not None:
        attempt.tenant_id = clean(tenant_id)


def _subject(matched: Matched) -> str:
    if matched.name_kind == "task_id" and (number := parse_task_id(matched.name)) is not None:
        return task_name(number)
    return clean(matched.name)
