"""Decodes requests: bytes in, values of the core out, or `BadRequest` with each error and its path."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from dgpu.core.model.array import ArrayPlan, size
from dgpu.core.model.dependencies import Dependency
from dgpu.core.model.ids import TenantId
from dgpu.core.model.secrets import REGISTRY_FILE
from dgpu.core.model.task import (
    PRIORITY_LEVELS,
    RUNS_CONTAINERS,
    WHOLE_MILLI,
    Constraint,
    Pool,
    Restart,
    Shape,
    TaskDetail,
    TaskSpec,
)
from dgpu.wire import fields, grids, job_fields, secret_fields, stop_fields
from dgpu.wire.answers import FieldError
from dgpu.wire.call_batch import batch_of_calls
from dgpu.wire.call_specs import Apps, Call, take_call
from dgpu.wire.detail_checks import clash_of
from dgpu.wire.fields import NotSupportedYet, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json, shorten
from dgpu.wire.submitters import Submitter
from dgpu.wire.task_fields import DEFAULT_TENANT, TASK_FIELDS

MAX_BODY_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_TASKS = 10_000
TASKS_PER_STEP = 100  # about half a millisecond
MAX_ERRORS_TOLD = 20
DEFAULT_CPUS_MILLI = 1_000  # of a task without GPUs
ONLINE_FROM_PRIORITY = PRIORITY_LEVELS["high"]

Entries = tuple[tuple[int, TaskSpec], ...]


_DETAIL_NAMES = frozenset(TaskDetail.__struct_fields__)
_RULES = {
    name: (field.target, field.check, field.target in _DETAIL_NAMES) for name, field in TASK_FIELDS.items()
}
_encode_detail = msgspec.json.Encoder().encode

# Seals the values of a tenant's variables. None: they stay as they are, for a request that stores nothing.
SealEnv: TypeAlias = Callable[[TenantId, dict[str, str]], str] | None


def decode_task(
    body: bytes,
    *,
    bare_means_allocation: bool = False,
    by: Submitter | None = None,
    seal: SealEnv = None,
    apps: Apps | None = None,
) -> TaskSpec:
    """One task. On the workstation API, a task without a command is an allocation. `apps` gets the apps of calls."""
    return _spec(parse_json(body), "", by, seal, apps, bare_means_allocation=bare_means_allocation)


def entry_of(spec: TaskSpec) -> tuple[int, TaskSpec]:
    """The number of tasks: the size of the array, or one."""
    return (size(spec.array) if spec.array else 1, spec)


def task_of(raw: object, where: str | int, by: Submitter | None = None) -> TaskSpec:
    """A task inside another body; `where` is its path there, or its number in a batch."""
    return _spec(raw, where, by)


def sealed_task_of(raw: object, where: str | int, by: Submitter | None, seal: SealEnv) -> TaskSpec:
    return _spec(raw, where, by, seal)


def decode_batch(
    body: bytes, by: Submitter | None = None, seal: SealEnv = None, apps: Apps | None = None
) -> Generator[None, None, Entries]:
    """`{tasks: [...]}`, `{task: {...}, count: N}` or `{task: {...}, calls: [...]}`. Yields between short steps, so that
    other work gets a turn.
    """
    raw = parse_json(body)
    if type(raw) is not dict:
        raise BadRequest("malformed_request", 'The body must be an object: {"tasks": [...]}.')
    if raw.keys() == {"tasks"}:
        return (yield from _decode_list(raw["tasks"], by, seal, apps))
    if raw.keys() == {"task", "count"}:
        try:
            number = fields.count(MAX_BATCH_TASKS)(raw["count"])
        except Unacceptable as bad:
            raise invalid([field_error("count", raw["count"], bad)]) from None
        spec = _spec(raw["task"], "task", by, seal, apps)
        if spec.array:
            raise invalid([FieldError(path="task.array", detail="Leave out array or count.")])
        return ((number, spec),)
    if raw.keys() == {"task", "calls"}:
        template = _spec(raw["task"], "task", by, seal, apps)
        return (yield from batch_of_calls(template, raw["calls"], MAX_BATCH_TASKS, TASKS_PER_STEP))
    unknown = sorted(raw.keys() - {"tasks", "task", "count", "calls"})
    raise BadRequest(
        "malformed_request",
        'A batch is {"tasks": [...]}, {"task": {...}, "count": N} or {"task": {...}, "calls": [...]}.',
        errors=[
            FieldError(path=path[:64], detail="This field is not known here.")
            for path in unknown[:MAX_ERRORS_TOLD]
        ],
    )


def _decode_list(
    tasks: object, by: Submitter | None, seal: SealEnv, apps: Apps | None
) -> Generator[None, None, Entries]:
    if type(tasks) is not list or not tasks:
        raise BadRequest(
            "malformed_request",
            "`tasks` must be a list of at least one task.",
            errors=[FieldError(path="tasks", detail="Expected a list of at least one task.")],
        )
    if len(tasks) > MAX_BATCH_TASKS:
        raise BadRequest(
            "too_many_tasks",
            f"{len(tasks):,} tasks in one batch, at most {MAX_BATCH_TASKS:,} are allowed. Send them in parts.",
            status=413,
            errors=[FieldError(path="tasks", detail=f"Expected at most {MAX_BATCH_TASKS} tasks.")],
        )
    entries: list[tuple[int, TaskSpec]] = []
    for start in range(0, len(tasks), TASKS_PER_STEP):
        step = tasks[start : start + TASKS_PER_STEP]
        entries += [entry_of(_spec(raw, number, by, seal, apps)) for number, raw in enumerate(step, start)]
        yield
    if len(entries) < (number := sum(count for count, _ in entries)) > MAX_BATCH_TASKS:
        detail = f"With their arrays these are {number:,} tasks, at most {MAX_BATCH_TASKS:,} are taken."
        raise BadRequest("too_many_tasks", detail, status=413)
    return tuple(entries)


def _spec(
    raw: object,
    where: str | int,
    by: Submitter | None = None,
    seal: SealEnv = None,
    apps: Apps | None = None,
    *,
    bare_means_allocation: bool = False,
) -> TaskSpec:
    if type(raw) is not dict:
        raise invalid([field_error(_path(where, ""), raw, Unacceptable("an object: the task"))])
    values, detail = _checked(raw, where)
    if type(raw.get("priority")) is str:
        detail["priority_named"] = True
    call = _call_of(values, detail, where)
    allocation = values.get("allocation", False)
    if ("command" in detail) is allocation and call is None:
        if allocation or not bare_means_allocation:
            raise invalid([_no_command(where, allocation=allocation)])
        values["allocation"] = True
    if "image_secret" in values or not _CONTAINER_NAMES.isdisjoint(detail):
        _check_container(values, detail, where)
    clash = clash_of(detail, values, allocation=allocation) or grids.misfit(values, detail)
    if clash:
        raise invalid([FieldError(path=_path(where, clash[0]), detail=clash[1])])
    if by is not None:
        _attribute(values, detail, by)
    asked = _asked(tuple(values.items()))
    unfit = stop_fields.misfit(values, detail) or secret_fields.misfit(detail)
    if unfit := unfit or job_fields.misfit(values, detail, where if isinstance(where, int) else 0):
        raise invalid([FieldError(path=_path(where, unfit[0]), detail=unfit[1])])
    if seal is not None and (env := detail.get("env")):
        detail["sealed_env"] = seal(asked.shape.tenant_id, env)
        detail["env"] = dict.fromkeys(env, "")
    return TaskSpec(
        shape=asked.shape if call is None else call.shape(asked.shape, detail, apps),
        detail=_encode_detail(detail),
        timeout_ms=asked.timeout_ms,
        max_retries=asked.max_retries,
        restart=asked.restart,
        allocation=asked.allocation,
        held=asked.held,
        after=asked.after,
        array=asked.array.ranges,
        array_limit=asked.array.limit,
        begins_ms=asked.begins_ms,
    )


def _checked(raw: dict[str, Any], where: str | int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the shape, and fields of TaskDetail: creating one only to encode it costs twice."""
    values: dict[str, Any] = {}
    detail: dict[str, Any] = {}
    for name, value in raw.items():
        rule = _RULES.get(name)
        if rule is None:
            raise invalid(_all_errors(raw, where))
        if value is None:
            continue
        target, check, is_detail = rule
        try:
            checked = check(value)
        except Unacceptable:
            raise invalid(_all_errors(raw, where)) from None
        if is_detail:
            detail[target] = checked
            if target == "model_name":
                values["model"] = checked
            continue
        if target in values and target:
            raise invalid(_all_errors(raw, where))
        values[target] = checked
    return values, detail


def _call_of(values: dict[str, Any], detail: dict[str, Any], where: str | int) -> Call | None:
    try:
        call = take_call(values, detail)
    except Unacceptable as bad:
        raise invalid([field_error(_path(where, "args"), None, bad)]) from None
    if isinstance(call, tuple):
        raise invalid([FieldError(path=_path(where, call[0]), detail=call[1])])
    return call


def _attribute(values: dict[str, Any], detail: dict[str, Any], by: Submitter) -> None:
    if by.tenant:
        values.setdefault("tenant_id", by.tenant)
    detail["labels"] = by.labelled(detail.get("labels", {}))


def _check_container(values: dict[str, Any], detail: dict[str, Any], where: str | int) -> None:
    """Rules between fields. An image requires a node that runs containers."""
    for name in _CONTAINER_NAMES.intersection(detail):
        if not detail[name]:
            del detail[name]  # as if it had been left out
    secret = values.pop("image_secret", "")
    if "image" not in detail:
        extra = "image_secret" if secret else next(filter(detail.get, sorted(_CONTAINER_NAMES)), None)
        if extra is not None:
            raise invalid([FieldError(path=_path(where, extra), detail="Needs an image.")])
        return
    if values.get("allocation"):
        why = "An allocation runs nothing; leave out image or allocation."
        raise invalid([FieldError(path=_path(where, "image"), detail=why)])
    if values.get("nodes", 1) != 1:
        why = "Not supported yet: a container over several nodes."
        raise invalid([FieldError(path=_path(where, "image"), detail=why, code=NOT_SUPPORTED_YET)])
    secrets: dict[str, Any] = detail.get("secrets", {})
    if secret in secrets:
        why = f"Expected a secret that is not in secrets, too, got {secret}."
        raise invalid([FieldError(path=_path(where, "image_secret"), detail=why)])
    if secret:
        detail["secrets"] = {**secrets, secret: {"file": REGISTRY_FILE}}
    asked: tuple[Constraint, ...] = values.get("constraints", ())
    values["constraints"] = tuple(sorted({*asked, RUNS_CONTAINERS}))


_CONTAINER_NAMES = frozenset({"image", "mounts", "read_only_root", "shm_mb"})


class _Asked(NamedTuple):
    """A task without its detail."""

    shape: Shape
    timeout_ms: int | None
    max_retries: int
    restart: Restart
    allocation: bool
    held: bool
    after: tuple[Dependency, ...]
    array: ArrayPlan
    begins_ms: int


_NO_ARRAY = ArrayPlan((), 0)


@functools.lru_cache(maxsize=4096)
def _asked(items: tuple[tuple[str, Any], ...]) -> _Asked:
    """Most tasks of a batch are alike and share one value."""
    values = dict(items)
    priority = values.get("priority", PRIORITY_LEVELS["normal"])
    pool = values.get("pool") or (Pool.ONLINE if priority >= ONLINE_FROM_PRIORITY else Pool.BATCH)
    shape = Shape(
        tenant_id=values.get("tenant_id", DEFAULT_TENANT),
        pool=pool,
        priority=priority,
        gpus=values.get("gpus", 1),
        gpu_models=values.get("gpu_models", ()),
        gpu_memory_mb=values.get("gpu_memory_mb", 0),
        cpus_milli=_cpus_milli(values),
        ram_mb=values.get("ram_mb", 0),
        nodes=values.get("nodes", 1),
        share_milli=values.get("share_milli", 1 if values.get("shared") else WHOLE_MILLI),
        constraints=values.get("constraints", ()),
        model=values.get("model", ""),
    )
    return _Asked(
        shape=shape,
        timeout_ms=values.get("timeout_ms"),
        max_retries=values.get("max_retries", 3),
        restart=values.get("restart", Restart.NEVER),
        allocation=values.get("allocation", False),
        held=values.get("held", False),
        after=values.get("after", ()),
        array=values.get("array", _NO_ARRAY),
        begins_ms=values.get("begins_ms", 0),
    )


def _cpus_milli(values: dict[str, Any]) -> int:
    """A command without GPUs holds one CPU unless the request sets `cpus`, where 0 means not counted. The default is
    set here, at submit, so a task in an existing journal keeps its original demand.
    """
    given: int | None = values.get("cpus_milli")
    if given is not None:
        return given
    runs_on_cpus = values.get("gpus", 1) == 0 and not values.get("allocation", False)
    return DEFAULT_CPUS_MILLI if runs_on_cpus else 0


def invalid(errors: list[FieldError]) -> BadRequest:
    unsupported = all(error.code == NOT_SUPPORTED_YET for error in errors)
    detail = "; ".join(
        f"{error.path}: {error.detail}" if error.path else error.detail for error in errors[:3]
    )
    if len(errors) > 3:
        detail += f"; and {len(errors) - 3} more"
    return BadRequest(
        NOT_SUPPORTED_YET if unsupported else "invalid_field",
        detail,
        status=422 if unsupported else 400,
        errors=errors[:MAX_ERRORS_TOLD],
    )


NOT_SUPPORTED_YET = "not_supported_yet"


def _all_errors(raw: dict[str, Any], where: str | int) -> list[FieldError]:
    """The slow path, used only after an error was found: every error with its path."""
    errors = []
    seen: dict[str, str] = {}
    for name, value in raw.items():
        field = TASK_FIELDS.get(name)
        if field is None:
            errors.append(unknown_field(name, where, TASK_FIELDS))
            continue
        if value is None:
            continue
        try:
            field.check(value)
        except Unacceptable as bad:
            errors.append(field_error(_path(where, name), value, bad))
        if field.target and field.target in seen:
            detail = f"Means the same as {seen[field.target]}; give one of them."
            errors.append(FieldError(path=_path(where, name), detail=detail))
        seen[field.target] = name
    return errors


def unknown_field(name: str, where: str | int, known: Iterable[str]) -> FieldError:
    close = difflib.get_close_matches(name[:64], list(known), n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return FieldError(
        path=_path(where, name[:64]), detail=f"This field is not known.{hint}", code="unknown_field"
    )


def _no_command(where: str | int, *, allocation: bool) -> FieldError:
    required = "Required: a string for the shell or a list; or an entrypoint; or set allocation to true."
    needless = "An allocation runs nothing; leave out command or allocation."
    return FieldError(path=_path(where, "command"), detail=needless if allocation else required)


def field_error(path: str, value: object, bad: Unacceptable) -> FieldError:
    if isinstance(bad, NotSupportedYet):
        return FieldError(path=path, detail=f"Not supported yet: {bad.expected}.", code=NOT_SUPPORTED_YET)
    shown = bad.value if bad.at or bad.value is not None else value
    got = "" if bad.secret else f", got {shorten(shown)}"
    facts = {"expected": bad.expected} if bad.secret else {"expected": bad.expected, "got": shorten(shown)}
    return FieldError(path=path + bad.at, detail=f"Expected {bad.expected}{got}.", facts=facts)


def _path(where: str | int, name: str) -> str:
    prefix = f"tasks[{where}]" if isinstance(where, int) else where
    return f"{prefix}.{name}" if prefix and name else prefix or name
