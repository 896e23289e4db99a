"""Answers about the audit log."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class AuditAnswer(Answer, frozen=True, kw_only=True):
    """One attempt, or several equal refusals."""

    id: str  # the group of the journal, and the place in it
    at: str
    user: str | None = None  # null: not recognised, or of another tenant
    role: str | None = None
    source: str | None = None  # uid, token, session, open or certificate
    token_id: str | None = None
    action: str
    call: str
    subject: str | None = None
    tenant_id: str | None = None  # of the subject
    tasks: int = 0  # submitted or changed
    origin: str | None = None  # an address, or a Unix user
    request_id: str | None = None
    result: str  # done, refused or failed
    status: int | None = None
    code: str | None = None
    count: int = 1  # equal attempts, from `since` to `at`
    since: str | None = None


class AuditPage(Answer, frozen=True, kw_only=True):
    entries: list[AuditAnswer]  # newest first
    next_cursor: str | None = None
    history_behind: int = 0  # groups of the journal that are not in these entries yet
