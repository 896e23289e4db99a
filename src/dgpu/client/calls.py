"""Every call as a value: what to send and what the answer must look like. Both clients carry these out."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dgpu.client.errors import BadRequest, DgpuError, error_of
from dgpu.wire import answers

T = TypeVar("T")

PART_TASKS = 10_000
PART_BYTES = 8 << 20
FINAL = frozenset({"success", "failed", "cancelled"})


class TaskFields(TypedDict, total=False):
    """A task as submitted; see the table of the API's description."""

    command: str | Sequence[str]
    name: str
    tenant_id: str
    pool: Literal["online", "batch"]
    priority: int | str
    gpu_count: int
    gpu_model: str | Sequence[str]
    gpu_memory_mb: int
    cpus: float
    ram_mb: int
    env: Mapping[str, str]
    workdir: str
    timeout_seconds: float
    max_retries: int
    restart: Literal["never", "on-failure", "always"]
    allocation: bool
    labels: Mapping[str, str]
    model_name: str
    task_type: str
    structure_n_atoms: int
    shared: bool
    gpu_share: float
    nodes: int
    image: str
    after: str | Sequence[str | Mapping[str, str]]
    array: str
    held: bool
    entrypoint: str
    args: Sequence[Any]
    constraints: Sequence[Any]


class Filters(TypedDict, total=False):
    status: str | None
    priority: int | str | None
    tenant: str | None
    pool: str | None
    name: str | None
    array: str | None
    q: str | None
    node: str | None
    gpu: str | None
    sort: Literal["newest", "oldest"] | None


class QuotaFields(TypedDict, total=False):
    """What is left out stays as it is."""

    online_percent: float | None
    mode: Literal["strict", "borrow"] | None
    reclaim: Literal["wait", "stop"] | None


class TenantFields(TypedDict, total=False):
    """Limits of a tenant. What is left out, or None, is no limit."""

    max_gpus: int | None
    guaranteed_gpus: int | None
    weight: float | None
    max_running: int | None
    max_waiting: int | None
    max_gpu_memory_mb: int | None
    max_priority: int | str | None
    pools: Sequence[Literal["online", "batch"]] | None
    gpu_hours_per_month: float | None


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """All calls may be repeated: a submit carries a key of its own, the others say what should be, not what to add."""

    method: str
    path: str
    answer: type[T]
    body: bytes | None = None
    headers: dict[str, str] = {}


def submit(task: Mapping[str, Any], idempotency_key: str | None) -> Call[answers.Submitted]:
    return Call(
        method="POST",
        path="/api/v1/tasks",
        answer=answers.Submitted,
        body=_encode(task),
        headers=_key(idempotency_key),
    )


def submit_copies(
    task: Mapping[str, Any], count: int, idempotency_key: str | None
) -> Call[answers.SubmittedMany]:
    return Call(
        method="POST",
        path="/api/v1/tasks/batch",
        answer=answers.SubmittedMany,
        body=_encode({"task": task, "count": count}),
        headers=_key(idempotency_key),
    )


def submit_parts(tasks: Iterable[Mapping[str, Any]]) -> Iterator[Call[answers.SubmittedMany]]:
    """One call per 10,000 tasks or 8 MiB. Each call is all or nothing; all of them together are not."""
    part: list[bytes] = []
    size = 0
    for task in tasks:
        encoded = _encode(task)
        if part and (len(part) == PART_TASKS or size + len(encoded) + 1 > PART_BYTES - 64):
            yield _part(part)
            part, size = [], 0
        part.append(encoded)
        size += len(encoded) + 1
    if part:
        yield _part(part)


def _part(tasks: list[bytes]) -> Call[answers.SubmittedMany]:
    return Call(
        method="POST",
        path="/api/v1/tasks/batch",
        answer=answers.SubmittedMany,
        body=b'{"tasks":[' + b",".join(tasks) + b"]}",
        headers=_key(None),
    )


def _key(chosen: str | None) -> dict[str, str]:
    return {"Idempotency-Key": chosen or secrets.token_hex(16)}


def get(task_id: str | int) -> Call[answers.TaskAnswer]:
    return Call(method="GET", path=_task(task_id), answer=answers.TaskAnswer)


def page(filters: Mapping[str, Any], limit: int, cursor: str | None) -> Call[answers.TaskPage]:
    return Call(
        method="GET",
        path="/api/v1/tasks" + _query({**filters, "limit": limit, "cursor": cursor}),
        answer=answers.TaskPage,
    )


def cancel(task_ids: Sequence[str | int]) -> Call[answers.Cancelled]:
    body = msgspec.json.encode({"task_ids": [str(task_id) for task_id in task_ids]})
    return Call(method="POST", path="/api/v1/tasks/cancel", answer=answers.Cancelled, body=body)


def cancel_where(filters: Mapping[str, Any]) -> Call[answers.Cancelled]:
    body = msgspec.json.encode({key: value for key, value in filters.items() if value is not None})
    return Call(method="POST", path="/api/v1/tasks/cancel", answer=answers.Cancelled, body=body)


def task_order(
    task_id: str | int, order: Literal["hold", "release"], *, array: bool = False
) -> Call[answers.TaskAnswer]:
    body = msgspec.json.encode({"array": True} if array else {})
    return Call(method="POST", path=f"{_task(task_id)}/{order}", answer=answers.TaskAnswer, body=body)


def retry(task_id: str | int, idempotency_key: str | None) -> Call[answers.Retried]:
    path = f"{_task(task_id)}/retry"
    return Call(method="POST", path=path, answer=answers.Retried, body=b"{}", headers=_key(idempotency_key))


def set_priority(task_id: str | int, priority: int | str, *, array: bool = False) -> Call[answers.TaskAnswer]:
    body = msgspec.json.encode({"priority": priority, **({"array": True} if array else {})})
    return Call(method="POST", path=f"{_task(task_id)}/priority", answer=answers.TaskAnswer, body=body)


def why(task_id: str | int) -> Call[answers.Why]:
    return Call(method="GET", path=f"{_task(task_id)}/why", answer=answers.Why)


def whatif(change: Mapping[str, Any]) -> Call[answers.WhatifAnswer]:
    body = _encode(change)
    return Call(method="POST", path="/api/v1/whatif", answer=answers.WhatifAnswer, body=body)


def task_events(task_id: str | int) -> Call[answers.TaskEvents]:
    return Call(method="GET", path=f"{_task(task_id)}/events", answer=answers.TaskEvents)


def queue(limit: int) -> Call[answers.QueuePage]:
    return Call(method="GET", path=f"/api/v1/queue?limit={limit}", answer=answers.QueuePage)


def estimates(
    tenant: str | None, model: str | None, task_type: str | None, atoms: int | None
) -> Call[answers.EstimateList]:
    asked = {"tenant": tenant, "model": model, "task_type": task_type, "atoms": atoms}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    return Call(
        method="GET", path="/api/v1/estimates" + (f"?{query}" if query else ""), answer=answers.EstimateList
    )


def gpus() -> Call[answers.GpuList]:
    return Call(method="GET", path="/api/v1/gpus", answer=answers.GpuList)


def recover_gpu(gpu_id: str, reason: str = "") -> Call[answers.GpuAnswer]:
    body = msgspec.json.encode({"reason": reason} if reason else {})
    path = f"/api/v1/gpus/{quote(gpu_id, safe='')}/recover"
    return Call(method="POST", path=path, answer=answers.GpuAnswer, body=body)


def nodes() -> Call[answers.NodeList]:
    return Call(method="GET", path="/api/v1/nodes", answer=answers.NodeList)


def node_order(
    node_id: str, order: Literal["drain", "resume", "lost"], reason: str = ""
) -> Call[answers.NodeAnswer]:
    body = msgspec.json.encode({"reason": reason} if reason else {})
    return Call(method="POST", path=f"{_node(node_id)}/{order}", answer=answers.NodeAnswer, body=body)


def remove_node(node_id: str) -> Call[answers.Removed]:
    return Call(method="DELETE", path=_node(node_id), answer=answers.Removed)


def quota() -> Call[answers.QuotaAnswer]:
    return Call(method="GET", path="/api/v1/quota", answer=answers.QuotaAnswer)


def set_quota(change: Mapping[str, Any]) -> Call[answers.QuotaAnswer]:
    return Call(method="PUT", path="/api/v1/quota", answer=answers.QuotaAnswer, body=_given(change))


def try_quota(change: Mapping[str, Any]) -> Call[answers.QuotaEffect]:
    path = "/api/v1/quota?dry_run=true"
    return Call(method="PUT", path=path, answer=answers.QuotaEffect, body=_given(change))


def tenants() -> Call[answers.TenantList]:
    return Call(method="GET", path="/api/v1/tenants", answer=answers.TenantList)


def tenant(tenant_id: str) -> Call[answers.TenantAnswer]:
    return Call(method="GET", path=_tenant(tenant_id), answer=answers.TenantAnswer)


def create_tenant(tenant_id: str, limits: Mapping[str, Any]) -> Call[answers.TenantAnswer]:
    body = _given({"id": tenant_id, **limits})
    return Call(method="POST", path="/api/v1/tenants", answer=answers.TenantAnswer, body=body)


def set_tenant(tenant_id: str, limits: Mapping[str, Any]) -> Call[answers.TenantAnswer]:
    return Call(method="PUT", path=_tenant(tenant_id), answer=answers.TenantAnswer, body=_given(limits))


def remove_tenant(tenant_id: str) -> Call[answers.Removed]:
    return Call(method="DELETE", path=_tenant(tenant_id), answer=answers.Removed)


def session() -> Call[answers.SessionAnswer]:
    return Call(method="GET", path="/api/v1/session", answer=answers.SessionAnswer)


def session_code() -> Call[answers.SessionCode]:
    return Call(method="POST", path="/api/v1/session/code", answer=answers.SessionCode, body=b"{}")


def board() -> Call[dict[str, Any]]:
    return Call(method="GET", path="/api/v1/board", answer=dict[str, Any])


def health() -> Call[answers.Health]:
    return Call(method="GET", path="/health", answer=answers.Health)


def ready() -> Call[answers.Ready]:
    return Call(method="GET", path="/ready", answer=answers.Ready)


def logs_path(
    task_id: str | int, *, follow: bool, tail: int | None, attempt: int | None, rank: int | None = None
) -> str:
    query = _query({"follow": "true" if follow else None, "tail": tail, "attempt": attempt, "rank": rank})
    return f"{_task(task_id)}/logs{query}"


def _task(task_id: str | int) -> str:
    return f"/api/v1/tasks/{quote(str(task_id), safe='')}"


def _node(node_id: str) -> str:
    return f"/api/v1/nodes/{quote(node_id, safe='')}"


def _tenant(tenant_id: str) -> str:
    return f"/api/v1/tenants/{quote(tenant_id, safe='')}"


def _given(values: Mapping[str, Any]) -> bytes:
    return _encode({key: value for key, value in values.items() if value is not None})


def _encode(value: object) -> bytes:
    """JSON has neither NaN nor infinity. They would go as null, which takes a limit away."""
    body = msgspec.json.encode(value)
    if b"null" in body:
        _check_numbers(value, "")
    return body


def _check_numbers(value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path}: Expected a number, got {value}.")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_numbers(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_numbers(item, f"{path}[{number}]")


def _query(values: Mapping[str, Any]) -> str:
    given = {key: value for key, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def headers_of(call: Call[Any], token: str) -> dict[str, str]:
    headers = {"Accept": "application/json", **call.headers, **bearer(token)}
    if call.method != "GET":
        headers["Content-Type"] = "application/json"
    return headers


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def parse(call: Call[T], status: int, body: bytes) -> T:
    """The typed answer; a problem is raised."""
    if not 200 <= status < 300:
        raise failure(status, body)
    try:
        return msgspec.json.decode(body, type=call.answer)
    except msgspec.MsgspecError as error:
        problem = _unreadable(
            status, f"The answer to {call.method} {call.path} is not what was expected: {error}."
        )
        raise error_of(problem) from None


def failure(status: int, body: bytes) -> DgpuError:
    try:
        return error_of(msgspec.json.decode(body, type=answers.Problem))
    except msgspec.MsgspecError:
        return error_of(_unreadable(status, f"The server answered {status} without saying why."))


def _unreadable(status: int, detail: str) -> answers.Problem:
    return answers.Problem(
        title="Unreadable answer",
        status=status if status >= 400 else 502,
        detail=detail,
        code="unreadable_answer",
    )
