"""Decodes services: the specification of a PUT, and the numbers of a scale."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from dgpu.core.model.service import DEFAULT_REQUESTS, MAX_REPLICAS, START_FIRST, STOP_FIRST, ServiceSpec
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable, whole
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.object_fields import checked
from dgpu.wire.port_fields import port
from dgpu.wire.requests import SealEnv, invalid, sealed_task_of
from dgpu.wire.submitters import Submitter

SERVICE_LABEL: Final = "dgpu.service"
A_NAME: Final = "1 to 40 small letters, digits and single hyphens, a letter first, not like task-1"
MAX_SECONDS: Final = 86_400
_NAME: Final = re.compile(r"(?!task-\d)(?=.{1,40}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NOT_OF_REPLICAS: Final = (
    "array",
    "grid",
    "allocation",
    "after",
    "begin_at",
    "held",
    "nodes",
    "restart",
    "ports",
)


class Scale(NamedTuple):
    low: int
    high: int


class ScaleChange(NamedTuple):
    """None: not given."""

    low: int | None
    high: int | None


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid([FieldError(path="name", detail=f"Expected {A_NAME}, got {name[:64]!r}.")])
    return name


def decode_service(body: bytes, name: str, by: Submitter | None, seal: SealEnv) -> ServiceSpec:
    raw = parse_json(body)
    if type(raw) is not dict or type(raw.get("task")) is not dict or "port" not in raw:
        example = '{"task": {"command": "python serve.py"}, "port": 8000}'
        raise BadRequest("malformed_request", f"Expected an object like {example}.")
    values = checked({key: value for key, value in raw.items() if key != "task"}, _CHECKS)
    scale = scale_of(values)
    task = dict(raw["task"])
    for field in _NOT_OF_REPLICAS:
        if field in task:
            raise invalid([FieldError(path=f"task.{field}", detail=f"A task of a service takes no {field}.")])
    labels = task.get("labels", {})
    task |= {"restart": "always", "ports": [values["port"]]}
    task["labels"] = {**labels, SERVICE_LABEL: name} if type(labels) is dict else labels
    task.setdefault("name", name)
    task.setdefault("pool", "online")
    times = {field: values[given] * 1_000 for given, field in _TIMES.items() if given in values}
    return ServiceSpec(
        task=sealed_task_of(task, "task", by, seal),
        port=values["port"],
        health=values.get("health", ""),
        min_replicas=scale.low,
        max_replicas=scale.high,
        requests=values.get("requests_per_replica", DEFAULT_REQUESTS),
        replace=values.get("replace", START_FIRST),
        **times,
    )


def decode_scale(body: bytes) -> ScaleChange:
    raw = parse_json(body)
    if type(raw) is not dict or not raw:
        raise BadRequest(
            "malformed_request", 'Expected an object like {"replicas": 2} or {"min_replicas": 1}.'
        )
    values = checked(raw, _SCALES)
    if "replicas" in values or len(values) > 1:
        return ScaleChange(*scale_of(values))
    return ScaleChange(values.get("min_replicas"), values.get("max_replicas"))


def scale_of(values: dict[str, Any]) -> Scale:
    low = values.get("min_replicas", values.get("replicas", 1))
    high = values.get("max_replicas", max(low, values.get("replicas", low)))
    if high < low:
        detail = f"Expected at least min_replicas ({low}), got {high}."
        raise invalid([FieldError(path="max_replicas", detail=detail)])
    return Scale(low, high)


def _health(value: Any) -> str:
    is_path = type(value) is str and (not value or value.startswith("/"))
    if not is_path or len(value) > 500 or not value.isascii() or not value.isprintable() or " " in value:
        raise Unacceptable("a path like /healthz, or an empty text: a connection is enough")
    return str(value)


def _replace(value: Any) -> str:
    if value not in {START_FIRST, STOP_FIRST}:
        raise Unacceptable(f"{START_FIRST} or {STOP_FIRST}")
    return str(value)


_SCALES: dict[str, Check] = {
    "replicas": whole(0, MAX_REPLICAS),
    "min_replicas": whole(0, MAX_REPLICAS),
    "max_replicas": whole(0, MAX_REPLICAS),
}
_TIMES: Final = {
    "interval_seconds": "interval_ms",
    "start_seconds": "start_ms",
    "unready_seconds": "unready_ms",
    "drain_seconds": "drain_ms",
    "calm_seconds": "calm_ms",
}
_CHECKS: dict[str, Check] = {
    **_SCALES,
    **dict.fromkeys(_TIMES, whole(1, MAX_SECONDS)),
    "port": port,
    "health": _health,
    "requests_per_replica": whole(1, 100_000),
    "replace": _replace,
}
