"""The one place that knows what a refusal means in HTTP: status, title, and words with numbers."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from dgpu.core import rejections as r
from dgpu.core.ids import task_name
from dgpu.core.task import MEMORY_STEP_MB
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.json_body import BadRequest

# Every kind of refusal. A new one is added to one of these, and the type checker then names the match that lacks it;
# a test compares the list with the classes that exist.
OfSubmits = (
    r.AlreadySubmitted
    | r.KeyReused
    | r.NeverFits
    | r.TimeoutTooLong
    | r.QueueFull
    | r.StorageFull
    | r.TooBusy
)
OfThings = (
    r.UnknownTask
    | r.TaskEnded
    | r.UnknownNode
    | r.UnknownGpu
    | r.NodeBusy
    | r.NodeNotOffline
    | r.GpuClaimed
    | r.StaleLease
)
AnyRejection = OfSubmits | OfThings

_LACKS = {
    "gpus": ("gpu_count", "GPUs on one node"),
    "gpu_model": ("gpu_model", "a GPU of that model"),
    "gpu_memory_mb": ("gpu_memory_mb", "MB of memory on each GPU"),
    "cpus": ("cpus", "CPUs on one node"),
    "ram_mb": ("ram_mb", "MB of main memory on one node"),
}


class Meaning(NamedTuple):
    status: int
    title: str
    detail: str
    errors: tuple[FieldError, ...] = ()


def problem_of(rejection: r.Rejection, *, batch: bool = False) -> Problem:
    meaning = _meaning(rejection, batch=batch)  # type: ignore[arg-type]  # the test keeps the list complete
    return Problem(
        title=meaning.title,
        status=meaning.status,
        detail=meaning.detail,
        code=rejection.code,
        errors=list(meaning.errors),
    )


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
    )


def _meaning(rejection: AnyRejection, *, batch: bool) -> Meaning:
    if isinstance(rejection, OfSubmits):
        return _of_submit(rejection, batch=batch)
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
        case r.QueueFull():
            return Meaning(
                429,
                "Too many tasks wait",
                f"{rejection.waiting:,} tasks wait; with {rejection.submitted:,} more the limit of "
                f"{rejection.limit:,} would be passed. Try again when some have run.",
            )
        case r.StorageFull():
            return Meaning(
                507,
                "The disk is full",
                "The journal has no room for new tasks. Running tasks go on; submit again when there is room.",
            )
        case r.TooBusy():
            return Meaning(
                503,
                "Too busy",
                f"{rejection.queued:,} commands wait to be decided. Nothing was done; try again soon.",
            )
        case _:
            assert_never(rejection)


def _of_thing(rejection: OfThings) -> Meaning:
    match rejection:
        case r.UnknownTask():
            return Meaning(404, "No such task", f"There is no task {task_name(rejection.task_id)}.")
        case r.TaskEnded():
            name = task_name(rejection.task_id)
            return Meaning(409, "The task is over", f"{name} is over already: {rejection.status}.")
        case r.UnknownNode():
            return Meaning(404, "No such node", f"There is no node {rejection.node_id!r}.")
        case r.UnknownGpu():
            return Meaning(404, "No such GPU", f"There is no GPU {rejection.gpu_id!r}.")
        case r.NodeBusy():
            return Meaning(
                409,
                "The node is in use",
                f"Node {rejection.node_id!r} is {rejection.status} and holds {rejection.leases} running tasks.",
            )
        case r.NodeNotOffline():
            return Meaning(
                409,
                "The node is connected",
                f"Node {rejection.node_id!r} is connected; only a node that cannot be reached can be given up.",
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
    path = _entry(rejection.entry, "timeout_seconds", batch=batch)
    return Meaning(422, "The time limit is too long", detail, (FieldError(path=path, detail=detail),))


def _never_fits(rejection: r.NeverFits, *, batch: bool) -> Meaning:
    field, unit = _LACKS.get(rejection.lacks, (rejection.lacks, rejection.lacks))
    if rejection.lacks == "gpu_model":
        detail = (
            f"No node has a GPU of model {rejection.requested!r}; there are: {rejection.largest or 'none'}."
        )
    else:
        steps = f" (in steps of {MEMORY_STEP_MB} MB)" if field.endswith("_mb") else ""
        detail = f"Asks for {rejection.requested} {unit}{steps}; the largest node has {rejection.largest}."
    path = _entry(rejection.entry, field, batch=batch)
    return Meaning(
        422,
        "No node can ever run this",
        f"{detail} Waiting would not help.",
        (FieldError(path=path, detail=detail, code=rejection.code),),
    )


def _entry(entry: int, field: str, *, batch: bool) -> str:
    return f"tasks[{entry}].{field}" if batch else field
