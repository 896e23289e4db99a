"""Decodes requests that change tasks: cancel, hold, release, priority."""

from __future__ import annotations

from typing import Any, NamedTuple

from dgpu.core.commands import CancelTasks
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.requests import MAX_BATCH_TASKS, field_error, invalid, unknown_field
from dgpu.wire.task_names import Element, Named

TERMS = ("q", "name", "user", "label", "node", "gpu")  # filters of the list that examine each task


class CancelRequest(NamedTuple):
    named: tuple[Named, ...]  # empty: the tasks that match the filters
    filters: CancelTasks
    terms: dict[str, str]  # as in the query of the list


def decode_cancel(body: bytes) -> CancelRequest:
    """`{task_ids: [...]}`, or at least one filter of the list: an empty body never means all tasks."""
    raw = parse_json(body)
    if type(raw) is not dict or not raw:
        raise BadRequest(
            "malformed_request",
            'Give the tasks to cancel: {"task_ids": [...]}, or filters of the list, such as status, tenant or name.',
        )
    unknown = [name for name in raw if name not in _CANCEL_CHECKS and name != "task_ids"]
    if unknown:
        raise invalid([unknown_field(name, "", ("task_ids", *_CANCEL_CHECKS)) for name in unknown])
    if "task_ids" in raw:
        if len(raw) > 1:
            raise invalid([_not_with_ids(name) for name in raw if name != "task_ids"])
        return CancelRequest(_named(raw["task_ids"]), CancelTasks(), {})
    values: dict[str, Any] = {}
    for name, value in raw.items():
        target, check = _CANCEL_CHECKS[name]
        try:
            values[target] = check(value)
        except Unacceptable as bad:
            raise invalid([field_error(name, value, bad)]) from None
    terms = {name: values.pop(name) for name in TERMS if name in values}
    return CancelRequest((), CancelTasks(**values), terms)


def decode_reason(body: bytes) -> str:
    """For orders about nodes and GPUs: `{}` or `{reason: "..."}`."""
    raw = parse_json(body) if body.strip() else {}
    if type(raw) is not dict:
        raise BadRequest("malformed_request", 'The body must be {} or {"reason": "..."}.')
    unknown = [name for name in raw if name != "reason"]
    if unknown:
        raise invalid([unknown_field(name, "", {"reason"}) for name in unknown])
    try:
        return str(fields.name(raw.get("reason") or ""))
    except Unacceptable as bad:
        raise invalid([FieldError(path="reason", detail=f"Expected {bad.expected}.")]) from None


def decode_target(body: bytes) -> bool:
    """For hold and release: whether the body says that an array is meant. Its id means the array anyway."""
    raw = parse_json(body) if body else {}
    return _is_array(raw, set())


def decode_nothing(body: bytes) -> None:
    """For calls whose body is `{}`."""
    raw = parse_json(body) if body.strip() else {}
    if type(raw) is not dict:
        raise BadRequest("malformed_request", "The body must be {}.")
    if raw:
        raise invalid([unknown_field(name, "", ()) for name in raw])


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


def decode_retry(body: bytes) -> bool:
    """Whether only failed tasks are meant."""
    raw = parse_json(body) if body.strip() else {}
    if type(raw) is not dict:
        raise BadRequest("malformed_request", "The body must be an object.")
    for name, value in raw.items():
        if name != "failed":
            raise invalid([unknown_field(name, "", {"failed"})])
        if type(value) is not bool:
            raise invalid([field_error(name, value, Unacceptable("true or false"))])
    return bool(raw.get("failed", False))


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
    named = fields.task(value)
    if named is None or isinstance(named, Element):
        raise Unacceptable("the id of an array: that of its first task, like task-42")
    return named


def _live_status(value: object) -> TaskStatus | None:
    """None: both, written as in the list: `pending,running`."""
    words = {word.strip() for word in value.split(",")} if isinstance(value, str) else set()
    if words == {"pending", "running"}:
        return None
    if words in ({"pending"}, {"running"}):
        return TaskStatus(words.pop())
    raise Unacceptable("pending or running: other tasks have ended")


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise Unacceptable("text that is not empty")


def _not_with_ids(name: str) -> FieldError:
    return FieldError(path=name, detail="A filter cannot be combined with task_ids.")


def _named(value: object) -> tuple[Named, ...]:
    if type(value) is not list or not value or len(value) > MAX_BATCH_TASKS:
        raise invalid(
            [field_error("task_ids", value, Unacceptable(f"a list of 1 to {MAX_BATCH_TASKS} task ids"))]
        )
    found: dict[Named, None] = {}
    for number, item in enumerate(value):
        named = fields.task(item)
        if named is None:
            expected = Unacceptable("an id like task-42 or task-42_3")
            raise invalid([field_error(f"task_ids[{number}]", item, expected)])
        found[named] = None
    return tuple(found)


_CANCEL_CHECKS: dict[str, tuple[str, Check]] = {
    "status": ("status", _live_status),
    "tenant": ("tenant_id", fields.tenant),
    "tenant_id": ("tenant_id", fields.tenant),
    "pool": ("pool", fields.pool),
    "priority": ("priority", fields.priority),
    "array": ("array_id", _array_id),
    **{name: (name, _text) for name in TERMS},
}
