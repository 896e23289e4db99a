"""Decodes requests that change tasks: cancel, hold, release, priority."""

from __future__ import annotations

from typing import Any

from dgpu.core.commands import CancelTasks
from dgpu.core.model.ids import TaskId, parse_task_id
from dgpu.core.model.task import TaskStatus
from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.requests import MAX_BATCH_TASKS, field_error, invalid, unknown_field


def decode_cancel(body: bytes) -> CancelTasks:
    """`{task_ids: [...]}`, or at least one filter of the list: an empty body never means all tasks."""
    raw = parse_json(body)
    if type(raw) is not dict or not raw:
        raise BadRequest(
            "malformed_request",
            'Give the tasks to cancel: {"task_ids": [...]}, or filters: status, tenant, pool, priority, array.',
        )
    if "task_ids" in raw:
        if len(raw) > 1:
            raise BadRequest("malformed_request", "task_ids cannot be combined with filters.")
        return CancelTasks(task_ids=_task_ids(raw["task_ids"]))
    checks: dict[str, tuple[str, Check]] = {
        "status": ("status", _live_status),
        "tenant": ("tenant_id", fields.tenant),
        "tenant_id": ("tenant_id", fields.tenant),
        "pool": ("pool", fields.pool),
        "priority": ("priority", fields.priority),
        "array": ("array_id", _array_id),
    }
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in checks:
            raise invalid([unknown_field(name, "", checks)])
        target, check = checks[name]
        try:
            values[target] = check(value)
        except Unacceptable as bad:
            raise invalid([field_error(name, value, bad)]) from None
    return CancelTasks(**values)


def decode_target(body: bytes) -> bool:
    """For hold and release: whether the whole array is meant. An empty body means only the task."""
    raw = parse_json(body) if body else {}
    return _is_array(raw, set())


def decode_priority(body: bytes) -> tuple[int, bool]:
    """`{priority: N}`, and whether the whole array is meant."""
    raw = parse_json(body)
    whole_array = _is_array(raw, {"priority"})
    if "priority" not in raw:
        raise invalid([FieldError(path="priority", detail="Required: 0 to 100, or a level's name.")])
    try:
        return fields.priority(raw["priority"]), whole_array
    except Unacceptable as bad:
        raise invalid([field_error("priority", raw["priority"], bad)]) from None


def _is_array(raw: Any, known: set[str]) -> bool:
    if type(raw) is not dict:
        raise BadRequest("malformed_request", "The body must be an object.")
    for name, value in raw.items():
        if name not in known | {"array"}:
            raise invalid([unknown_field(name, "", known | {"array"})])
        if name == "array" and type(value) is not bool:
            raise invalid([field_error(name, value, Unacceptable("true or false"))])
    return bool(raw.get("array", False))


def _array_id(value: object) -> TaskId:
    task_id = parse_task_id(str(value)) if type(value) in {str, int} else None
    if task_id is None:
        raise Unacceptable("the id of an array: that of its first task, like task-42")
    return task_id


def _live_status(value: object) -> TaskStatus:
    if isinstance(value, str) and value in {"pending", "running"}:
        return TaskStatus(value)
    raise Unacceptable("pending or running: other tasks have ended")


def _task_ids(value: object) -> tuple[TaskId, ...]:
    if type(value) is not list or not value or len(value) > MAX_BATCH_TASKS:
        raise invalid(
            [field_error("task_ids", value, Unacceptable(f"a list of 1 to {MAX_BATCH_TASKS} task ids"))]
        )
    ids = []
    for number, item in enumerate(value):
        task_id = parse_task_id(str(item)) if type(item) in {str, int} else None
        if task_id is None:
            raise invalid([field_error(f"task_ids[{number}]", item, Unacceptable("an id like task-42"))])
        ids.append(task_id)
    return tuple(dict.fromkeys(ids))
