"""Maps refusals to HTTP: status, title, and a text with numbers. Only it, `meaning` and `tenant_problem` do so."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from dgpu.core import rejections as r
from dgpu.core.model.dependencies import ANY_INDEX
from dgpu.core.model.ids import task_name
from dgpu.core.model.task import MEMORY_STEP_MB
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.json_body import BadRequest
from dgpu.wire.meaning import (
    Meaning,
    OfSecrets,
    OfServices,
    OfTokens,
    entry_path,
    of_secret,
    of_service,
    of_token,
)
from dgpu.wire.task_names import element_name
from dgpu.wire.tenant_problem import OfTenants, of_tenant

# Every kind of refusal. Add a new one to one of these; the type checker then names the match that lacks it, and
# a test compares the list with the existing classes.
OfSubmits = r.AlreadySubmitted | r.KeyReused | r.NeverFits | r.TimeoutTooLong
OfLoad = (
    r.QueueFull
    | r.StorageFull
    | r.JournalUnavailable
    | r.TooBusy
    | r.TooManyKeys
    | r.TooManyApps
    | r.TooManyAlertRecords
    | r.HistoryBehind
)
OfThings = (
    r.UnknownTask
    | r.TaskEnded
    | r.UnknownNode
    | r.UnknownGpu
    | r.GpuInService
    | r.StaleCheck
    | r.NodeBusy
    | r.NodeNotOffline
    | r.GpuClaimed
    | r.StaleLease
)
OfWaiting = (
    r.TaskNotWaiting
    | r.UnknownArray
    | r.UnknownDependency
    | r.DependencyForgotten
    | r.DependencyNeverMet
    | r.TooManyDependencies
)
AnyRejection = OfTenants | OfSubmits | OfLoad | OfThings | OfWaiting | OfTokens | OfSecrets | OfServices

_TASK_FIELDS = frozenset({"task_id", "first_id", "array_id"})
_MAX_FACT_CHARS = 200
_LACKS = {
    "nodes": ("nodes", "nodes"),
    "gpus": ("gpu_count", "GPUs on one node"),
    "gpu_model": ("gpu_model", "a GPU of that model"),
    "constraints": ("constraints", "nodes with such labels"),
    "gpu_memory_mb": ("gpu_memory_mb", "MB of memory on each GPU"),
    "cpus": ("cpus", "CPUs on one node"),
    "ram_mb": ("ram_mb", "MB of main memory on one node"),
}


def problem_of(rejection: r.Rejection, *, batch: bool = False) -> Problem:
    meaning = _meaning(rejection, batch=batch)  # type: ignore[arg-type]  # the test keeps the list complete
    return Problem(
        title=meaning.title,
        status=meaning.status,
        detail=meaning.detail,
        code=rejection.code,
        errors=list(meaning.errors),
        facts=facts_of(rejection),
    )


def facts_of(rejection: r.Rejection) -> dict[str, Any]:
    """The fields of a refusal with the names and values that people see."""
    told: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(rejection).items():
        if name in _TASK_FIELDS:
            told[name] = task_name(value)
        elif isinstance(value, str):
            told[name] = value.partition("/")[2] or value if name == "key" else value[:_MAX_FACT_CHARS]
        elif isinstance(value, tuple):
            told[name] = ", ".join(task_name(each.task_id) for each in value[:5])
        else:
            told[name] = value
    if told.pop("index", ANY_INDEX) != ANY_INDEX:
        told["task_id"] = element_name(rejection.task_id, rejection.index)  # type: ignore[attr-defined]
    return told


def problem_of_bad_request(bad: BadRequest) -> Problem:
    titles = {
        400: "The request cannot be understood",
        413: "The request is too large",
        422: "The request cannot be carried out",
    }
    return Problem(
        title=titles.get(bad.status, "Bad request"),
        status=bad.status,
        detail=bad.detail,
        code=bad.code,
        errors=list(bad.errors),
        facts=dict(bad.facts),
    )


def _meaning(rejection: AnyRejection, *, batch: bool) -> Meaning:
    if isinstance(rejection, OfSubmits):
        return _of_submit(rejection, batch=batch)
    if isinstance(rejection, OfLoad):
        return _of_load(rejection)
    if isinstance(rejection, OfTenants):
        return of_tenant(rejection, batch=batch)
    if isinstance(rejection, OfWaiting):
        return _of_waiting(rejection, batch=batch)
    if isinstance(rejection, OfTokens):
        return of_token(rejection)
    if isinstance(rejection, OfServices):
        return of_service(rejection)
    if isinstance(rejection, OfSecrets):
        return of_secret(rejection, entry_path(getattr(rejection, "entry", 0), "secrets", batch=batch))
    return _of_thing(rejection)


def _of_submit(rejection: OfSubmits, *, batch: bool) -> Meaning:
    match rejection:
        case r.AlreadySubmitted():
            first = task_name(rejection.first_id)
            return Meaning(409, "Already submitted", f"These tasks were submitted already, from {first} on.")
        case r.KeyReused():
            key = (
                rejection.key.partition("/")[2] or rejection.key
            )  # without the tenant, which the key is kept under
            return Meaning(
                422,
                "Idempotency key used before",
                f"The Idempotency-Key {key!r} was used with another body. A new request needs a new key.",
            )
        case r.NeverFits():
            return _never_fits(rejection, batch=batch)
        case r.TimeoutTooLong():
            return _timeout_too_long(rejection, batch=batch)
        case _:
            assert_never(rejection)


def _of_load(rejection: OfLoad) -> Meaning:
    """The request is valid, but the scheduler cannot accept it now."""
    match rejection:
        case r.QueueFull():
            return Meaning(
                429,
                "Too many tasks wait",
                f"{rejection.waiting:,} tasks wait; with {rejection.submitted:,} more the limit of "
                f"{rejection.limit:,} would be exceeded. Try again when some have run.",
            )
        case r.StorageFull():
            full = "The journal has no room for new tasks. Running tasks continue; submit again when there is room."
            return Meaning(507, "The disk is full", full)
        case r.JournalUnavailable():
            later = "Running tasks continue; /ready shows when tasks are accepted again."
            return Meaning(
                503, "The journal is not available", f"Nothing was done: {rejection.reason}. {later}"
            )
        case r.HistoryBehind():
            return Meaning(
                503,
                "The history is behind",
                f"Nothing was done: {rejection.finished:,} finished tasks are in memory because the history does not "
                f"contain them yet; the limit is {rejection.limit:,}. Running tasks continue. See the scheduler's log "
                f"and its disk.",
            )
        case r.TooManyAlertRecords():
            limit = f"Alerts, silences and unsent messages have {rejection.limit:,} records at most."
            return Meaning(429, "Too many alerts", limit)
        case r.TooManyKeys():
            owner = f"tenant {rejection.tenant_id!r}" if rejection.tenant_id else "all tenants together"
            return Meaning(
                429,
                "Too many idempotency keys",
                f"{rejection.known:,} Idempotency-Keys of {owner} are known, the limit is {rejection.limit:,}, and "
                "none younger than an hour is dropped. Submit in batches (one key for up to 10,000 tasks), without a "
                "key, or later.",
            )
        case r.TooManyApps():
            limit = (
                f"Calls of {rejection.apps:,} different apps wait or run, the limit is {rejection.limit:,}."
            )
            return Meaning(429, "Too many apps", f"{limit} Try again when some have ended.")
        case r.TooBusy():
            queued = f"{rejection.queued:,} commands wait to be decided."
            return Meaning(503, "Too busy", f"{queued} Nothing was done; try again soon.")
        case _:
            assert_never(rejection)


def _of_waiting(rejection: OfWaiting, *, batch: bool) -> Meaning:
    match rejection:
        case r.TaskNotWaiting():
            name = task_name(rejection.task_id)
            return Meaning(
                409, "The task is not waiting", f"{name} is not waiting: it is {rejection.status}."
            )
        case r.UnknownArray():
            name = task_name(rejection.array_id)
            return Meaning(404, "No such array", f"There is no array that begins with {name}.")
        case r.UnknownDependency():
            name = task_name(rejection.task_id)
            if rejection.index != ANY_INDEX:
                name = element_name(rejection.task_id, rejection.index)
            detail = (
                f"{name} ended so long ago that its result is unknown."
                if rejection.forgotten
                else f"There is no task {name} to wait for."
            )
            return _of_after(rejection, "No such task to wait for", detail, batch=batch)
        case r.DependencyForgotten():
            names = ", ".join(task_name(each.task_id) for each in rejection.on[:5])
            detail = f"The result of {names} is no longer in memory."
            return _of_after(rejection, "The dependency ended long ago", detail, batch=batch)
        case r.DependencyNeverMet():
            name = task_name(rejection.task_id)
            ended = f"{name} has ended: {rejection.status}."
            detail = f"{ended} A dependency on it with `{rejection.when}` can no longer be met."
            return _of_after(rejection, "The task would wait for ever", detail, batch=batch)
        case r.TooManyDependencies():
            detail = (
                f"{rejection.number:,} dependencies, counted over all tasks; at most {rejection.limit:,} are "
                "allowed in one request."
            )
            return _of_after(rejection, "Too many dependencies", detail, batch=batch)
        case _:
            assert_never(rejection)


def _of_after(
    rejection: r.UnknownDependency | r.DependencyForgotten | r.DependencyNeverMet | r.TooManyDependencies,
    title: str,
    detail: str,
    *,
    batch: bool,
) -> Meaning:
    path = entry_path(rejection.entry, "after", batch=batch)
    return Meaning(422, title, detail, (FieldError(path=path, detail=detail, code=rejection.code),))


def _of_thing(rejection: OfThings) -> Meaning:
    match rejection:
        case r.UnknownTask():
            return Meaning(404, "No such task", f"There is no task {task_name(rejection.task_id)}.")
        case r.TaskEnded():
            name = task_name(rejection.task_id)
            return Meaning(409, "The task has ended", f"{name} has already ended: {rejection.status}.")
        case r.UnknownNode():
            return Meaning(404, "No such node", f"There is no node {rejection.node_id!r}.")
        case r.UnknownGpu():
            return Meaning(404, "No such GPU", f"There is no GPU {rejection.gpu_id!r}.")
        case r.GpuInService():
            return Meaning(
                409,
                "The GPU is in service",
                f"GPU {rejection.gpu_id} is {rejection.state}; only a GPU that is out of service can be recovered.",
            )
        case r.StaleCheck():
            return Meaning(
                409,
                "The check is outdated",
                f"Check {rejection.number} of GPU {rejection.gpu_id} was not requested.",
            )
        case r.NodeBusy():
            return Meaning(
                409,
                "The node is in use",
                f"Node {rejection.node_id!r} is {rejection.status}; running tasks: {rejection.leases}. Only a node "
                "that is offline and has none can be removed: drain it, then stop its agent.",
            )
        case r.NodeNotOffline():
            return Meaning(
                409,
                "The node is connected",
                f"Node {rejection.node_id!r} is connected; only an unreachable node can be given up.",
            )
        case r.GpuClaimed():
            return Meaning(
                409,
                "The GPU belongs to another node",
                f"Node {rejection.node_id!r} reports GPU {rejection.gpu_id}, which node {rejection.holder!r} has.",
            )
        case r.StaleLease():
            return Meaning(409, "The lease is over", f"Lease {rejection.lease_id} was released.")
        case _:
            assert_never(rejection)


def _timeout_too_long(rejection: r.TimeoutTooLong, *, batch: bool) -> Meaning:
    asked, most = rejection.timeout_ms / 1000, rejection.max_timeout_ms / 1000
    detail = f"timeout_seconds is {asked:g}; at most {most:g} is allowed here."
    path = entry_path(rejection.entry, "timeout_seconds", batch=batch)
    return Meaning(422, "The time limit is too long", detail, (FieldError(path=path, detail=detail),))


def _never_fits(rejection: r.NeverFits, *, batch: bool) -> Meaning:
    field, unit = _LACKS.get(rejection.lacks, (rejection.lacks, rejection.lacks))
    if rejection.lacks == "gpu_model":
        detail = (
            f"No node has a GPU of model {rejection.requested!r}; there are: {rejection.largest or 'none'}."
        )
    elif rejection.lacks == "constraints":
        detail = f"Asks for nodes with {rejection.requested}; none of the {rejection.largest} nodes matches."
    elif rejection.lacks == "nodes":
        detail = (
            f"Asks for {rejection.requested} nodes at once; only {rejection.largest} could run a rank of it."
        )
    else:
        steps = f" (in steps of {MEMORY_STEP_MB} MB)" if field.endswith("_mb") else ""
        detail = f"Asks for {rejection.requested} {unit}{steps}; the largest node has {rejection.largest}."
    path = entry_path(rejection.entry, field, batch=batch)
    return Meaning(
        422,
        "No node can ever run this",
        f"{detail} Waiting would not help.",
        (FieldError(path=path, detail=detail, code=rejection.code),),
    )
