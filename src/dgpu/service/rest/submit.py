"""The hottest calls, without a framework: bytes in, one command, bytes out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec.structs import replace

from dgpu.core.commands import SubmitTasks
from dgpu.core.events import TasksSubmitted
from dgpu.core.model.app import App
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.rejections import AlreadySubmitted, DependencyForgotten, Rejection
from dgpu.service.access.principal import Principal
from dgpu.service.rest.arrays import resolve_after
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.dependencies import look_up
from dgpu.service.rest.grace_limit import refuse_long_grace
from dgpu.service.rest.known_uploads import refuse_unknown_uploads
from dgpu.service.rest.notify_check import refuse_unknown_targets
from dgpu.service.rest.ownership import refuse_foreign_entries, refuse_userless_entries, submitter_of
from dgpu.wire.answers import Problem, instant
from dgpu.wire.call_specs import Apps
from dgpu.wire.json_body import BadRequest
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import MAX_BATCH_BYTES, MAX_BODY_BYTES, Entries, decode_batch, decode_task, entry_of

MAX_KEY_CHARS = 200
BODY_SECONDS = 30.0

Receive = Any
Headers = dict[bytes, bytes]


async def submit_task(backend: Backend, who: Principal, headers: Headers, receive: Receive) -> bytes:
    return await _submit_one(backend, who, headers, receive, bare_means_allocation=False)


async def submit_task_of_workstation(
    backend: Backend, who: Principal, headers: Headers, receive: Receive
) -> bytes:
    """S2's form: no command means an allocation."""
    return await _submit_one(backend, who, headers, receive, bare_means_allocation=True)


async def _submit_one(
    backend: Backend, who: Principal, headers: Headers, receive: Receive, *, bare_means_allocation: bool
) -> bytes:
    key = key_of(headers)
    body = await read_body(headers, receive, MAX_BODY_BYTES)
    by = submitter_of(who)
    apps = Apps(backend.options.worker_setup)
    entry = entry_of(
        decode_task(
            body, bare_means_allocation=bare_means_allocation, by=by, seal=backend.seal_env, apps=apps
        )
    )
    first_id, count, created_at = await submit_entries(
        backend, who, (entry,), key, body, batch=False, apps=apps.all()
    )
    more = b',"count":%d' % count if entry[1].array else b""
    return b'{"task_id":"%b","status":"pending","created_at":"%b"%b}' % (
        task_name(first_id).encode(),
        instant(created_at).encode(),
        more,
    )


async def submit_batch(backend: Backend, who: Principal, headers: Headers, receive: Receive) -> bytes:
    key = key_of(headers)
    body = await read_body(headers, receive, MAX_BATCH_BYTES)
    apps = Apps(backend.options.worker_setup)
    entries = await _in_steps(decode_batch(body, submitter_of(who), backend.seal_env, apps))
    first_id, count, _ = await submit_entries(backend, who, entries, key, body, batch=True, apps=apps.all())
    return msgspec.json.encode(
        {"task_ids": [f"task-{number}" for number in range(first_id, first_id + count)]}
    )


async def _in_steps(decoding: Generator[None, None, Entries]) -> Entries:
    """Other requests get a turn of the loop after each step: a large batch takes a hundred times as long as one."""
    while True:
        try:
            next(decoding)
        except StopIteration as done:
            entries: Entries = done.value
            return entries
        await asyncio.sleep(0)


async def submit_entries(
    backend: Backend,
    who: Principal,
    entries: Entries,
    key: str,
    body: bytes,
    *,
    batch: bool,
    apps: tuple[App, ...] = (),
) -> tuple[TaskId, int, int]:
    """`apps`: of the function calls among the entries."""
    entries = await resolve_after(backend, who, entries, batch=batch)
    await refuse_foreign_entries(backend, who, entries, batch=batch)
    refuse_userless_entries(backend, entries, batch=batch)
    refuse_long_grace(backend, entries, batch=batch)
    await refuse_unknown_uploads(backend, entries, apps, batch=batch)
    await refuse_unknown_targets(backend, entries, batch=batch)
    command = SubmitTasks(entries=entries, apps=apps)
    if key:
        # Per tenant: one tenant cannot discover or use another's keys.
        tenant = entries[0][1].shape.tenant_id
        command = replace(
            command, idempotency_key=f"{tenant}/{key}", fingerprint=hashlib.sha256(body).hexdigest()
        )
    result = await backend.execute(command)
    while isinstance(result, DependencyForgotten):
        # Each round settles at least one dependency for good.
        known = await look_up(backend, command, result)
        if isinstance(known, Rejection):
            raise ProblemError(problem_of(known, batch=batch))
        command = known
        result = await backend.execute(command)
    if isinstance(result, AlreadySubmitted):
        return result.first_id, result.count, result.created_at
    if isinstance(result, Rejection):
        raise ProblemError(problem_of(result, batch=batch))
    submitted = result[0]
    if not isinstance(submitted, TasksSubmitted):
        raise TypeError(f"a submit returned {type(submitted).__name__}")
    return submitted.first_id, sum(number for number, _ in submitted.entries), submitted.at


def key_of(headers: Headers) -> str:
    given = headers.get(b"idempotency-key")
    if given is None:
        return ""
    key = given.decode("latin-1").strip()
    if not key or len(key) > MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise BadRequest(
            "invalid_idempotency_key",
            f"The Idempotency-Key header takes 1 to {MAX_KEY_CHARS} printable ASCII characters.",
        )
    return key


async def read_body(headers: Headers, receive: Receive, max_bytes: int) -> bytes:
    """Refused by its announced length before a byte is read, or during the read if it announced none."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and (len(length) > 12 or int(length) > max_bytes):
        raise too_large(max_bytes)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_parts(message, receive, max_bytes)
    except TimeoutError:
        problem = Problem(
            status=408,
            code="too_slow",
            title="Too slow",
            detail=f"The body did not arrive within {BODY_SECONDS:g} s.",
            facts={"seconds": BODY_SECONDS},
        )
        raise ProblemError(problem, {"connection": "close"}) from None


async def _read_parts(message: Any, receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ConnectionResetError("the client left before its request was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise too_large(max_bytes)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def too_large(max_bytes: int) -> ProblemError:
    return ProblemError(
        Problem(
            status=413,
            code="body_too_large",
            title="The request is too large",
            detail=f"The body may have at most {max_bytes:,} bytes. Send the tasks in parts.",
            facts={"max_bytes": max_bytes},
        )
    )
