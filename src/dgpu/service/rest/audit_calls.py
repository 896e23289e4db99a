"""The calls on the audit log: a page, and all of it as JSON lines."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter, SkipValidation
from litestar.response import Stream

from dgpu.service.access.table import Action, may
from dgpu.service.history.audit import AuditFilters, AuditPart, PastAudit, Place, read_audit
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.past import LONGEST_MS, parse_range, past_of
from dgpu.service.rest.tasks import CursorQuery, Given, LimitQuery, Opener, Who
from dgpu.wire.answers import instant, instant_or_none
from dgpu.wire.audit_answers import AuditAnswer, AuditPage
from dgpu.wire.fields import Unacceptable

_ALWAYS = AuditFilters()
RESULTS = ("done", "refused", "failed")
JSON_LINES = "application/x-ndjson"
_PER_READ = 1_000
_CATCH_UP_S = 2.0
_MAX_NAME = 128
_ACTION = re.compile(r"[a-z]{1,32}(\.[a-z_]{1,32})?")
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")

_Since = Annotated[
    str | None,
    QueryParameter(
        description="How long ago (30d, 6h), or a time like 2026-07-30T12:00:00Z. If absent, from the first entry.",
        required=False,
    ),
]
_Until = Annotated[str | None, QueryParameter(description="The same; now, if absent.", required=False)]
_User = Annotated[str | None, QueryParameter(description="The user of the principal.", required=False)]
_Action = Annotated[
    str | None,
    QueryParameter(
        description="An action of the table of rights (task.change), or all that begin so (task).",
        required=False,
    ),
]
_Result = Annotated[str | None, QueryParameter(description="done, refused or failed.", required=False)]
_Tenant = Annotated[str | None, QueryParameter(description="The tenant of the subject.", required=False)]


async def audit_filters(
    rest: Given,
    who: Who,
    since: _Since = None,
    until: _Until = None,
    user: _User = None,
    action: _Action = None,
    result: _Result = None,
    tenant: _Tenant = None,
) -> AuditFilters:
    """The query of both calls."""
    times = parse_range(rest, since, until, default=f"{LONGEST_MS // 1_000}s")
    if tenant is not None and not may(who, Action.READ_AUDIT, tenant):
        tenant = ""  # like a tenant that never was
    return AuditFilters(
        since=_ALWAYS.since if since is None else times.since,
        until=_ALWAYS.until if until is None else times.until,
        user=_name("user", user),
        action=None if action is None else listing.query_value("action", action, _known_action),
        result=None if result is None else listing.query_value("result", result, _known_result),
        tenant_id=_name("tenant", tenant),
        tenants=who.tenants,
    )


Filters = NamedDependency[SkipValidation[AuditFilters]]
_WITH_FILTERS = {"filters": Provide(audit_filters)}


@get(
    "/api/v1/audit",
    summary="Read the audit log",
    description="Changes, accepted and refused, and refusals for want of rights, newest first. A tenant-admin sees "
    "entries about its own tenants and of users of only these, without names of others. Equal refusals within a minute "
    "are one entry with their number. `history_behind` above 0: this many of the newest groups of the journal are "
    "missing. A page may be short and still have a next_cursor.",
    dependencies=_WITH_FILTERS,
)
async def audit_page(
    rest: Given, filters: Filters, limit: LimitQuery = None, cursor: CursorQuery = None
) -> AuditPage:
    most = listing.parse_limit(limit)
    before = _place(cursor)
    behind = await _catch_up(rest)
    part = await _read(rest, filters, before, most)
    return AuditPage(
        entries=[_answer(each) for each in part.entries],
        next_cursor=None if part.stopped is None else "-".join(map(str, part.stopped)),
        history_behind=behind,
    )


@get(
    "/api/v1/audit/export",
    summary="Export the audit log",
    description="JSON lines: one entry per line, newest first, with the fields of /api/v1/audit.",
    media_type=JSON_LINES,
    dependencies=_WITH_FILTERS,
)
async def audit_export(rest: Given, filters: Filters, opener: Opener) -> Stream:
    await _catch_up(rest)
    first = await _read(rest, filters, None, _PER_READ)
    return Stream(_lines(rest, opener(), filters, first), media_type=JSON_LINES)


async def _lines(
    rest: Backend, opened: OpenStream, filters: AuditFilters, part: AuditPart
) -> AsyncIterator[bytes]:
    encoder = msgspec.json.Encoder()
    try:
        while True:
            yield encoder.encode_lines([_answer(each) for each in part.entries])
            if part.stopped is None:
                return
            part = await _read(rest, filters, part.stopped, _PER_READ)
    finally:
        opened.close()


async def _read(rest: Backend, filters: AuditFilters, before: Place | None, limit: int) -> AuditPart:
    past = past_of(rest)
    key = ("audit", filters, before, limit, rest.runtime.committed_index)
    return await past.ask(key, lambda: read_audit(past.history, filters, before, limit))


async def _catch_up(rest: Backend) -> int:
    """Readers find their own attempts: counted ones are written first, and the history gets a moment to catch up.
    Returns the number of groups that it still lacks.
    """
    await rest.trail.flush()
    wanted = await rest.runtime.read(lambda _: rest.runtime.committed_index)
    if rest.follower is None:
        return 0
    await rest.follower.reach(wanted, _CATCH_UP_S)
    return max(0, wanted - rest.follower.seen_index)


def _name(name: str, value: str | None) -> str | None:
    if value is not None and len(value) > _MAX_NAME:
        raise listing.bad_query(name, value, f"at most {_MAX_NAME} characters")
    return value


def _known_action(text: str) -> str:
    if not _ACTION.fullmatch(text):
        raise Unacceptable("an action like task.change, or task")
    return text


def _known_result(text: str) -> str:
    if text not in RESULTS:
        raise Unacceptable(", ".join(RESULTS))
    return text


def _place(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise listing.bad_query("cursor", cursor, "a next_cursor of an earlier answer")
    return int(found[1]), int(found[2]), int(found[3])


def _answer(entry: PastAudit) -> AuditAnswer:
    return AuditAnswer(
        id=f"{entry.journal_index}.{entry.position}",
        at=instant(entry.at),
        user=entry.user or None,
        role=entry.role or None,
        source=entry.source or None,
        token_id=entry.token_id or None,
        action=entry.action,
        call=entry.call,
        subject=entry.subject or None,
        tenant_id=entry.tenant_id or None,
        tasks=entry.tasks,
        origin=entry.origin or None,
        request_id=entry.request_id or None,
        result=entry.result,
        status=entry.status or None,
        code=entry.code or None,
        count=entry.count,
        since=instant_or_none(entry.since),
    )


ROUTES: tuple[Any, ...] = (audit_page, audit_export)
