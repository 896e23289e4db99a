"""What-if requests: the body of `POST /api/v1/whatif`, and the service's requests to its follower.

They travel as JSON over the follower's pipe, so they are separate values and not commands of the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.model.quota import MILLION, QuotaMode, Reclaim
from dgpu.core.model.task import TaskSpec
from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.requests import (
    MAX_BATCH_TASKS,
    Entries,
    entry_of,
    field_error,
    invalid,
    task_of,
    unknown_field,
)
from dgpu.wire.submitters import Submitter

MAX_ADDED = 1_000  # nodes, all kinds together
MAX_GPUS_ADDED = 64  # per node


class Submitting(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    entries: tuple[tuple[int, TaskSpec], ...]
    tenants: tuple[str, ...] | None = None  # of the reader; None: all. The answer names no others


class ChangingQuota(msgspec.Struct, frozen=True, kw_only=True, tag="quota"):
    online_ppm: int | None = None
    mode: QuotaMode | None = None
    reclaim: Reclaim | None = None


class Draining(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    node_id: NodeId


class Losing(msgspec.Struct, frozen=True, kw_only=True, tag="lose"):
    node_id: NodeId


class NewNodes(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_mb`, `cpus_milli` and `ram_mb` None: like existing nodes."""

    gpus: int
    model: str
    count: int = 1
    memory_mb: int | None = None
    cpus_milli: int | None = None
    ram_mb: int | None = None


class Adding(msgspec.Struct, frozen=True, kw_only=True, tag="add_nodes"):
    kinds: tuple[NewNodes, ...]


class Hastening(msgspec.Struct, frozen=True, kw_only=True, tag="sooner"):
    """Asks for changes that would start this task now."""

    task_id: TaskId
    tenants: tuple[str, ...] | None = None  # as above


Whatif: TypeAlias = Submitting | ChangingQuota | Draining | Losing | Adding
Question: TypeAlias = Whatif | Hastening

_KINDS = ("submit", "quota", "drain", "lose", "add_nodes")
_SHOWN = (
    'Give one change: {"submit": {...}}, {"quota": {"online_percent": 0.6}}, {"drain": "node"}, '
    '{"lose": "node"} or {"add_nodes": [{"gpus": 8, "model": "A100"}]}.'
)


def decode_whatif(body: bytes, by: Submitter | None = None) -> Whatif:
    raw = parse_json(body)
    if type(raw) is not dict or len(raw) != 1:
        unknown = sorted(raw.keys() - set(_KINDS)) if type(raw) is dict else []
        errors = [unknown_field(name, "", _KINDS) for name in unknown[:5]]
        raise BadRequest("malformed_request", _SHOWN, errors=errors)
    ((kind, value),) = raw.items()
    match kind:
        case "submit":
            return Submitting(entries=_entries(value, by))
        case "quota":
            return _quota(value)
        case "drain":
            return Draining(node_id=_node(value, kind))
        case "lose":
            return Losing(node_id=_node(value, kind))
        case "add_nodes":
            return Adding(kinds=_kinds(value))
        case _:
            raise invalid([unknown_field(kind, "", _KINDS)])


def _entries(value: object, by: Submitter | None) -> Entries:
    """The task itself, or {task, count}."""
    if type(value) is dict and "task" in value:
        for name in value.keys() - {"task", "count"}:
            raise invalid([unknown_field(name, "submit", ("task", "count"))])
        spec = task_of(value["task"], "submit.task", by)
        if "count" not in value:
            return (entry_of(spec),)
        if spec.array:
            raise invalid([FieldError(path="submit.count", detail="Leave out array or count.")])
        return ((_checked(fields.count(MAX_BATCH_TASKS), value["count"], "submit.count"), spec),)
    return (entry_of(task_of(value, "submit", by)),)


def _quota(value: object) -> ChangingQuota:
    checks: dict[str, Check] = {"online_percent": _fraction, "mode": _mode, "reclaim": _reclaim}
    given = _fields(value, "quota", checks)
    if not given:
        detail = "Required: online_percent, a number from 0 to 1."
        raise invalid([FieldError(path="quota.online_percent", detail=detail)])
    return ChangingQuota(
        online_ppm=given.get("online_percent"), mode=given.get("mode"), reclaim=given.get("reclaim")
    )


def _kinds(value: object) -> tuple[NewNodes, ...]:
    if type(value) is not list or not 0 < len(value) <= MAX_ADDED:
        expected = Unacceptable(f"a list of 1 to {MAX_ADDED} objects like {{gpus, model}}")
        raise invalid([field_error("add_nodes", value, expected)])
    kinds = []
    for number, item in enumerate(value):
        where = f"add_nodes[{number}]"
        given = _fields(item, where, _NEW_NODE)
        missing = [name for name in ("gpus", "model") if name not in given]
        if missing:
            raise invalid([FieldError(path=f"{where}.{name}", detail="Required.") for name in missing])
        kinds.append(
            NewNodes(
                gpus=given["gpus"],
                model=given["model"],
                count=given.get("count", 1),
                memory_mb=given.get("memory_mb"),
                cpus_milli=given.get("cpus"),
                ram_mb=given.get("ram_mb"),
            )
        )
    number = sum(kind.count for kind in kinds)
    if number > MAX_ADDED:
        raise invalid(
            [FieldError(path="add_nodes", detail=f"Expected at most {MAX_ADDED} nodes, got {number}.")]
        )
    return tuple(kinds)


def _fields(value: object, where: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    if type(value) is not dict:
        raise invalid([field_error(where, value, Unacceptable(f"an object with {', '.join(checks)}"))])
    given = {}
    for name, item in value.items():
        if name not in checks:
            raise invalid([unknown_field(name, where, checks)])
        if item is not None:
            given[name] = _checked(checks[name], item, f"{where}.{name}")
    return given


def _checked(check: Check, value: object, path: str) -> Any:
    try:
        return check(value)
    except Unacceptable as bad:
        raise invalid([field_error(path, value, bad)]) from None


def _node(value: object, path: str) -> NodeId:
    if type(value) is str and 0 < len(value) <= 128:
        return NodeId(value)
    raise invalid([field_error(path, value, Unacceptable("the name of a node"))])


def _fraction(value: Any) -> int:
    """In millionths."""
    if type(value) in {int, float} and 0 <= value <= 1:
        millionths: int = round(value * MILLION)
        return millionths
    raise Unacceptable("a number from 0 to 1")


def _mode(value: Any) -> QuotaMode:
    try:
        return QuotaMode(value)
    except ValueError:
        raise Unacceptable("strict or borrow") from None


def _reclaim(value: Any) -> Reclaim:
    try:
        return Reclaim(value)
    except ValueError:
        raise Unacceptable("wait or stop") from None


def _model(value: Any) -> str:
    return fields.models(value)[0] if type(value) is str else fields.models(None)[0]


_NEW_NODE: dict[str, Check] = {
    "gpus": fields.whole(0, MAX_GPUS_ADDED),
    "model": _model,
    "count": fields.count(MAX_ADDED),
    "memory_mb": fields.megabytes,
    "cpus": fields.milli_cpus,
    "ram_mb": fields.megabytes,
}
