"""The calls on alerts."""

from __future__ import annotations

from collections.abc import Awaitable
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, delete, get, post
from litestar.params import PathParameter, QueryParameter

from dgpu.service.alerts.bodies import alert_answer, silence_answer
from dgpu.service.alerts.readers import alert_for, silences_for
from dgpu.service.alerts.rules import RULE_NAMES
from dgpu.service.alerts.values import MAX_ENDED, MAX_SILENCES, Alert, AlertState, Silence
from dgpu.service.alerts.watch import AlertWatch, NotKept
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, LimitQuery, Who
from dgpu.wire.alert_answers import (
    AlertAnswer,
    AlertList,
    SilenceAnswer,
    SilenceList,
    TargetAnswer,
    TargetList,
    TestedTarget,
    TestedTargets,
)
from dgpu.wire.alert_fields import decode_comment, decode_nothing, decode_silence
from dgpu.wire.answers import Problem, Removed
from dgpu.wire.fields import Unacceptable
from dgpu.wire.problem import problem_of

_STATES = {state.value: frozenset({state}) for state in AlertState} | {
    "open": frozenset({AlertState.PENDING, AlertState.FIRING})
}
_MAX_DIGITS = 18
T = TypeVar("T")

AlertIdText = Annotated[str, PathParameter(description="alert-12, or 12.")]
SilenceIdText = Annotated[str, PathParameter(description="silence-3, or 3.")]
StateQuery = Annotated[
    str | None,
    # Named here, because Litestar reserves the argument name `state`.
    QueryParameter(
        name="state", description="pending, firing, resolved, or open (pending or firing).", required=False
    ),
]
EndedQuery = Annotated[str | None, QueryParameter(description="true: include ended ones.", required=False)]
RuleQuery = Annotated[str | None, QueryParameter(description="The name of a rule.", required=False)]


@get(
    "/api/v1/alerts",
    summary="List alerts",
    description="Firing first, then pending, then resolved; the newest of each first. The latest resolved ones are "
    "kept.",
)
async def list_alerts(
    rest: Given, who: Who, wanted: StateQuery = None, rule: RuleQuery = None, limit: LimitQuery = None
) -> AlertList:
    watch = _watch(rest)
    states = None if wanted is None else _STATES[listing.query_value("state", wanted, _one_of(_STATES))]
    name = None if rule is None else listing.query_value("rule", rule, _one_of(RULE_NAMES))
    most = listing.parse_limit(limit)
    taken = [
        told
        for alert in watch.machine.listed()
        if (states is None or alert.state in states)
        and name in {None, alert.rule}
        and (told := alert_for(who.tenants, alert)) is not None
    ]
    shown = [_answer(watch, alert) for alert in islice(taken, most)]
    counts = watch.counts(who.audience)
    return AlertList(
        total=len(taken),
        pending=counts.pending,
        firing=counts.firing,
        resolved=counts.resolved,
        dropped=watch.machine.dropped,
        alerts=shown,
    )


@get(
    "/api/v1/alerts/{alert_id:str}",
    summary="Show an alert",
    description="An open alert or a kept resolved one.",
)
async def get_alert(rest: Given, who: Who, alert_id: AlertIdText) -> AlertAnswer:
    watch = _watch(rest)
    told = alert_for(who.tenants, _alert(watch, alert_id))
    if told is None:
        raise _no_alert(alert_id)
    return _answer(watch, told)


@post(
    "/api/v1/alerts/{alert_id:str}/acknowledge",
    summary="Acknowledge an alert",
    description="An operator takes care of it: no more reminders are sent. Body: {} or {comment}.",
    status_code=200,
)
async def acknowledge_alert(
    rest: Given, alert_id: AlertIdText, request: Request[Any, Any, Any]
) -> AlertAnswer:
    watch = _watch(rest)
    comment = decode_comment(await request.body())
    alert = _alert(watch, alert_id)
    known = await _kept(watch.acknowledge(alert.number, comment))
    if known is None:
        detail = f"alert-{alert.number} is resolved; there is nothing to acknowledge."
        raise ProblemError(
            Problem(
                status=409,
                title="The alert has ended",
                code="alert_not_open",
                detail=detail,
                facts={"alert": f"alert-{alert.number}"},
            )
        )
    return _answer(watch, known)


@get(
    "/api/v1/alerts/silences",
    summary="List silences",
    description=f"Active silences; with ended=true also the last {MAX_ENDED} ended ones.",
)
async def list_silences(rest: Given, who: Who, ended: EndedQuery = None) -> SilenceList:
    machine, now = _watch(rest).machine, _watch(rest).now_ms()
    every = False if ended is None else listing.query_value("ended", ended, _true_or_false)
    known = [*(machine.ended.values() if every else ()), *machine.silences.values()]
    silences = [silence_answer(each, now) for each in silences_for(who.tenants, known, machine.listed())]
    shown = [each for each in silences if every or each.active]
    return SilenceList(total=len(shown), silences=shown)


@get(
    "/api/v1/alerts/silences/{silence_id:str}",
    summary="Show a silence",
    description="An active silence, or one of the last ended ones.",
)
async def get_silence(rest: Given, who: Who, silence_id: SilenceIdText) -> SilenceAnswer:
    watch = _watch(rest)
    over = watch.machine.ended.get(_number(silence_id, "silence-") or 0)
    known = over or _silence(watch, silence_id)
    for told in silences_for(who.tenants, [known], watch.machine.listed()):
        return silence_answer(told, watch.now_ms())
    raise _no_silence(silence_id)


@post(
    "/api/v1/alerts/silences",
    summary="Silence alerts",
    description="Alerts of the rule (and subject) are listed, but no message is sent, for `seconds` or `until`.",
    status_code=201,
)
async def create_silence(rest: Given, request: Request[Any, Any, Any]) -> SilenceAnswer:
    watch = _watch(rest)
    asked = decode_silence(await request.body(), RULE_NAMES, watch.now_ms())
    silence = await _kept(watch.silence(asked.rule, asked.subject, asked.until, asked.comment))
    if silence is None:
        detail = f"At most {MAX_SILENCES:,} silences are kept. Remove one, or silence a whole rule."
        raise ProblemError(
            Problem(
                status=409,
                title="Too many silences",
                code="too_many_silences",
                detail=detail,
                facts={"limit": MAX_SILENCES},
            )
        )
    return silence_answer(silence, watch.now_ms())


@delete(
    "/api/v1/alerts/silences/{silence_id:str}",
    summary="End a silence",
    description="Alerts that fire and were not sent yet are sent then.",
    status_code=200,
)
async def remove_silence(rest: Given, silence_id: SilenceIdText) -> Removed:
    watch = _watch(rest)
    silence = _silence(watch, silence_id)
    await _kept(watch.unsilence(silence.number))
    return Removed(id=f"silence-{silence.number}")


@get(
    "/api/v1/alerts/targets",
    summary="Targets of alerts",
    description="With the numbers of sent and failed messages since the start. Addresses are shown without secrets.",
)
async def list_targets(rest: Given) -> TargetList:
    return TargetList(
        targets=[
            TargetAnswer(name=target.name, kind=target.kind, address=target.address, **counts._asdict())
            for target, counts in _watch(rest).target_counts()
        ]
    )


@post(
    "/api/v1/alerts/test",
    summary="Send a test message",
    description="One attempt to every target, now. The answer gives the result of each. Body: {}.",
    status_code=200,
)
async def test_targets(rest: Given, request: Request[Any, Any, Any]) -> TestedTargets:
    watch = _watch(rest)
    decode_nothing(await request.body())
    if watch.testing:
        detail = "A test message is already being sent. Try again when it is done."
        raise ProblemError(Problem(status=409, title="A test runs", code="test_running", detail=detail))
    return TestedTargets(
        targets=[
            TestedTarget(
                name=tested.target.name,
                kind=tested.target.kind,
                address=tested.target.address,
                ok=tested.ok,
                detail=tested.detail,
                seconds=tested.seconds,
            )
            for tested in await watch.test()
        ]
    )


def _watch(rest: Backend) -> AlertWatch:
    if rest.alerts is None:
        detail = "Alerts are disabled: alerts.enabled is false."
        raise ProblemError(Problem(status=404, title="No alerts", code="alerts_off", detail=detail))
    return rest.alerts


def _answer(watch: AlertWatch, alert: Alert) -> AlertAnswer:
    until = watch.machine.silenced_until(alert)
    return alert_answer(alert, until if until > watch.now_ms() else 0)


def _alert(watch: AlertWatch, text: str) -> Alert:
    number = _number(text, "alert-")
    alert = None if number is None else watch.machine.find(number)
    if alert is None:
        raise _no_alert(text)
    return alert


def _no_alert(text: str) -> ProblemError:
    detail = f"There is no alert {text[:64]!r}. Resolved alerts are kept only for a while."
    facts = {"alert": text[:64]}
    return ProblemError(
        Problem(status=404, title="No such alert", code="unknown_alert", detail=detail, facts=facts)
    )


def _silence(watch: AlertWatch, text: str) -> Silence:
    number = _number(text, "silence-")
    silence = None if number is None else watch.machine.silences.get(number)
    if silence is None:
        raise _no_silence(text)
    return silence


def _no_silence(text: str) -> ProblemError:
    detail = f"There is no silence {text[:64]!r}. It may have ended."
    facts = {"silence": text[:64]}
    return ProblemError(
        Problem(status=404, title="No such silence", code="unknown_silence", detail=detail, facts=facts)
    )


async def _kept(change: Awaitable[T]) -> T:
    try:
        return await change
    except NotKept as failed:
        problem = problem_of(failed.rejection)
        detail = f"The change could not be stored and was not made. {problem.detail}"
        raise ProblemError(msgspec.structs.replace(problem, detail=detail)) from failed


def _true_or_false(value: str) -> bool:
    if value in {"true", "false"}:
        return value == "true"
    raise Unacceptable("true or false")


def _number(text: str, prefix: str) -> int | None:
    digits = text.removeprefix(prefix)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < _MAX_DIGITS else None


def _one_of(words: Any) -> Any:
    def check(value: Any) -> str:
        if value in words:
            return str(value)
        raise Unacceptable(f"one of {', '.join(words)}")

    return check


ROUTES: tuple[Any, ...] = (
    list_alerts,
    list_silences,
    list_targets,
    get_silence,
    get_alert,
    acknowledge_alert,
    create_silence,
    remove_silence,
    test_targets,
)
