"""Why a task waited at a time in the past."""

from __future__ import annotations

import structlog

from dgpu.core.model.ids import TaskId
from dgpu.service.access.principal import Principal
from dgpu.service.looking_back.link import Busy
from dgpu.service.looking_back.words import LookBack, Seen
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.listing import bad_query, query_value
from dgpu.wire.answers import Problem, instant
from dgpu.wire.foresight_answers import Why
from dgpu.wire.time_range import moment_ms

_log = structlog.get_logger("dgpu.journal")


async def why_then(rest: Backend, who: Principal, task_id: TaskId, text: str) -> Why:
    now = rest.runtime.now_ms()
    at = query_value("at", text, lambda given: moment_ms(given, now))
    if at > now:
        raise bad_query("at", text, "a time in the past")
    known = await listing.find_task(rest, who, task_id)
    upto_index = rest.runtime.committed_index
    seen = await _look_back(
        rest, LookBack(task_id=task_id, at=at, upto_index=upto_index, tenants=who.tenants)
    )
    if seen.error:
        _log.error("journal_not_looked_back", task=known.task_id, reason=seen.error)  # it may name files
        raise ProblemError(
            _unreadable("The journal of that time cannot be read. The scheduler's log says why.")
        )
    if seen.earliest_at is not None:
        raise ProblemError(_too_early(at, seen.earliest_at))
    if seen.why is not None:
        return seen.why
    if instant(at) < known.created_at:
        raise ProblemError(_not_submitted_yet(known.task_id, at, known.created_at))
    summary = f"{known.task_id} was over ({known.status})."
    return Why(task_id=known.task_id, status=known.status, summary=summary, at=instant(at))


async def _look_back(rest: Backend, question: LookBack) -> Seen:
    if rest.looking_back is None:
        raise ProblemError(_unreadable("This scheduler keeps no journal in files."))
    try:
        return await rest.looking_back.ask(question)
    except Busy:
        problem = Problem(
            status=503,
            code="past_busy",
            title="Too many questions about the past",
            detail="Too many questions about the past wait already. Try again soon.",
        )
        raise ProblemError(problem, {"retry-after": "5"}) from None


def _too_early(at: int, earliest_at: int) -> Problem:
    detail = f"The journal here is kept from {instant(earliest_at)} on; {instant(at)} was before."
    facts = {"at": instant(at), "earliest": instant(earliest_at)}
    return Problem(status=410, code="journal_not_kept", title="No longer known", detail=detail, facts=facts)


def _not_submitted_yet(name: str, at: int, created_at: str) -> Problem:
    detail = f"{name} was submitted at {created_at}, after {instant(at)}."
    facts = {"task_id": name, "at": instant(at), "created_at": created_at}
    return Problem(
        status=404, code="not_submitted_yet", title="No such task then", detail=detail, facts=facts
    )


def _unreadable(detail: str) -> Problem:
    return Problem(status=410, code="past_unreadable", title="No longer readable", detail=detail)
