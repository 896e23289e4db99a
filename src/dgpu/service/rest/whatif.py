"""The calls why and what-if. Long answers come from the follower, small ones from the service's own state."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import QueryParameter
from msgspec.structs import replace

from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.model.task import TaskStatus
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import told_to
from dgpu.service.access.table import Action, refusal_for_all
from dgpu.service.follower.link import FollowerAway
from dgpu.service.rest import listing
from dgpu.service.rest.arrays import resolve_after
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.foresee import ask_ahead
from dgpu.service.rest.grace_limit import refuse_long_grace
from dgpu.service.rest.notify_check import refuse_unknown_targets
from dgpu.service.rest.ownership import refuse_foreign_entries, refuse_userless_entries, submitter_of
from dgpu.service.rest.tasks import Given, TaskIdText, Who
from dgpu.service.rest.why_then import why_then
from dgpu.service.views.explained import why_answer
from dgpu.wire.answers import Problem
from dgpu.wire.foresight_answers import Change, WhatifAnswer, Why
from dgpu.wire.questions import Hastening, Submitting, decode_whatif

_PATIENCE_S = 20.0
_SOONER_PATIENCE_S = 0.3  # `why` answers without it rather than late

_At = Annotated[
    str | None,
    QueryParameter(
        description="How long ago (2h, 90m), or a time like 2026-07-30T12:00:00Z. Now, if absent.",
        required=False,
    ),
]

_whatif = msgspec.json.Decoder(WhatifAnswer).decode
_changes = msgspec.json.Decoder(list[Change]).decode


@get(
    "/api/v1/tasks/{task_id:str}/why",
    summary="Why a task waits",
    description="Every blocker with its numbers, the position in the queue and the tasks ahead, the expected start "
    "(null: unknown; or, with looked_ahead false, not computed yet), its reservation, and changes that would start "
    "it now. With `at`, the same for a time in the past, from the journal, with the task as it was; the "
    "forecast of that time is not kept.",
)
async def why_task(rest: Given, who: Who, task_id: TaskIdText, at: _At = None) -> Why:
    number = listing.task_id_of(task_id)
    if at is not None:
        return await why_then(rest, who, number, at)

    def look(state: ClusterState) -> tuple[Explanation | Rejection, int]:
        task = state.tasks.get(number)
        found = explain(state, number, max(state.last_at, rest.runtime.now_ms()))
        if not isinstance(found, Rejection):
            found = told_to(who.tenants, state, found)
        return found, 0 if task is None else task.created_at

    found, created_at = await rest.runtime.read(look)
    if isinstance(found, Rejection):
        past = await listing.find_task(rest, who, number)
        return Why(
            task_id=past.task_id, status=past.status, summary=f"{past.task_id} is over ({past.status})."
        )
    waits = found.status is TaskStatus.PENDING
    asks = waits and bool(found.blockers)
    sooner = await _sooner(rest, Hastening(task_id=number, tenants=who.tenants)) if asks else []
    forecasts = rest.follower.forecasts if rest.follower is not None and waits else None
    return replace(
        why_answer(found),
        expected_start=forecasts.expected(number, rest.runtime.now_ms()) if forecasts else None,
        looked_ahead=forecasts is None or forecasts.knows(created_at),
        sooner=sooner or [],
        sooner_known=sooner is not None,
    )


@post(
    "/api/v1/whatif",
    summary="Predict the effect of a change",
    description="Changes nothing. Body: {submit: task}, {quota: {online_percent}}, {drain: node}, {lose: node} or "
    "{add_nodes: [{gpus, model}]}. The answer lists tasks that would start at once, wait longer by the forecast, or "
    "be stopped, and why the change would be refused. A principal of some tenants may ask about a submit; effects on "
    "tasks of other tenants are counted in `others`.",
    status_code=200,
)
async def what_if(rest: Given, who: Who, request: Request[Any, Any, Any]) -> WhatifAnswer:
    question = decode_whatif(await request.body(), submitter_of(who))
    if isinstance(question, Submitting):
        entries = await resolve_after(rest, who, question.entries, batch=False)
        question = replace(question, entries=entries)
        await refuse_foreign_entries(rest, who, question.entries, Action.PREDICT, path="submit.")
        refuse_userless_entries(rest, question.entries, path="submit.")
        refuse_long_grace(rest, question.entries, path="submit.")
        await refuse_unknown_targets(rest, question.entries, path="submit.")
        question = replace(question, tenants=who.tenants)
    elif (refused := refusal_for_all(who, Action.PREDICT)) is not None:
        raise ProblemError(refused)
    try:
        return _whatif(await ask_ahead(rest, question, _PATIENCE_S))
    except FollowerAway:
        problem = Problem(
            status=503,
            code="foresight_away",
            title="No forecast is available now",
            detail="The process that computes forecasts is starting or busy. Try again in a moment.",
        )
        raise ProblemError(problem, {"retry-after": "1"}) from None


async def _sooner(rest: Backend, question: Hastening) -> list[Change] | None:
    try:
        return _changes(await ask_ahead(rest, question, _SOONER_PATIENCE_S))
    except FollowerAway:
        return None


ROUTES: tuple[Any, ...] = (why_task, what_if)
