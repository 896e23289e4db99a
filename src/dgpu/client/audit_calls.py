"""Calls about the audit log."""

from __future__ import annotations

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path
from dgpu.wire.audit_answers import AuditPage


class AuditCalls:
    @Call
    def audit(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        user: str | None = None,
        action: str | None = None,
        result: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Request[AuditPage]:
        """A page of the audit log, newest first. The next page: pass `next_cursor` as `cursor`, until it is None."""
        path = api_path(
            "audit",
            since=since,
            until=until,
            user=user,
            action=action,
            result=result,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
        )
        return Request("GET", path, AuditPage)
