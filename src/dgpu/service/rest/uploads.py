"""Uploads: archives of projects, sent once and used by any number of tasks of the tenant."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, get, head, put
from litestar.params import PathParameter, QueryParameter

from dgpu.core.model.ids import TenantId
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.content.store import (
    Arrival,
    ContentMismatch,
    ContentStoreFull,
    ContentTooLarge,
)
from dgpu.service.content.uses import used_content
from dgpu.service.rest.attempt import note_tenant
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.known_uploads import PUT_PATIENCE_S, store_of, unknown_upload, until_copied
from dgpu.service.rest.ownership import submitter_of
from dgpu.service.rest.tasks import Given, Who
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.requests import invalid
from dgpu.wire.task_fields import DEFAULT_TENANT
from dgpu.wire.tenant_fields import tenant_id_of
from dgpu.wire.upload_answers import UploadAnswer, UploadRoom
from dgpu.wire.uploads import A_DIGEST, DIGEST, PIECE_BYTES

MAX_ARRIVALS = 16  # at once
_SILENT_S = 60.0  # without a byte: the sender has left

Sha256 = Annotated[str, PathParameter(description=f"{A_DIGEST[0].upper()}{A_DIGEST[1:]}.")]
TenantQuery = Annotated[
    str | None, QueryParameter(description="Of your tenants; the first one if absent.", required=False)
]


@get(
    "/api/v1/uploads",
    summary="Room for uploads",
    description="The limits of uploads of a tenant, and the bytes that it uses.",
)
async def upload_room(rest: Given, who: Who, tenant: TenantQuery = None) -> UploadRoom:
    store, tenant_id = store_of(rest), _tenant(who, tenant)
    return UploadRoom(
        tenant_id=tenant_id,
        max_bytes=store.limits.max_bytes,
        tenant_bytes=store.limits.tenant_bytes,
        used_bytes=store.used_bytes(tenant_id),
    )


@get(
    "/api/v1/uploads/{sha256:str}",
    summary="Look for an upload",
    description="404 `unknown_upload` if the scheduler does not have it. The content itself cannot be read back. HEAD "
    "answers the same without a body.",
)
async def find_upload(rest: Given, who: Who, sha256: Sha256, tenant: TenantQuery = None) -> UploadAnswer:
    return _found(rest, _tenant(who, tenant), _digest(sha256))


@head("/api/v1/uploads/{sha256:str}", include_in_schema=False)  # described with GET
async def has_upload(rest: Given, who: Who, sha256: Sha256, tenant: TenantQuery = None) -> None:
    _found(rest, _tenant(who, tenant), _digest(sha256))


@put(
    "/api/v1/uploads/{sha256:str}",
    summary="Send an archive for tasks",
    description="The body is the content (Content-Type: application/octet-stream), a tar file packed with gzip. It is "
    "stored when its SHA-256 is the one in the path, else 422 `digest_mismatch`. 413 above the limit, before the "
    "body is read if Content-Length is given; 507 `uploads_full` if there is no room. A scheduler that has it already "
    "answers at once. With several schedulers, the answer comes when every standby in contact has a copy, after 60 s "
    "at the latest. An archive is deleted seven days after its last use (storage.upload_retention), "
    "but not while a task that waits or runs needs it.",
    status_code=200,
    request_max_body_size=None,
    opt={"raw_body": True},
)
async def put_upload(
    rest: Given, who: Who, sha256: Sha256, request: Request[Any, Any, Any], tenant: TenantQuery = None
) -> UploadAnswer:
    store, tenant_id, digest = store_of(rest), _tenant(who, tenant), _digest(sha256)
    note_tenant(tenant_id)
    size = _announced(request, store.limits.max_bytes)
    if await asyncio.to_thread(store.find, tenant_id, digest) is not None:
        await until_copied(rest, [(tenant_id, digest)], PUT_PATIENCE_S)
        return _found(rest, tenant_id, digest)
    if rest.arrivals >= MAX_ARRIVALS:
        detail = f"{MAX_ARRIVALS} uploads are under way. Try again soon."
        facts = {"limit": MAX_ARRIVALS}
        problem = Problem(status=503, code="uploads_busy", title="Busy", detail=detail, facts=facts)
        raise ProblemError(problem, {"retry-after": "1"})
    rest.arrivals += 1
    try:
        used = await rest.runtime.read(used_content)
        arrival = await asyncio.to_thread(store.begin, tenant_id, digest, size, used)
        try:
            await _take(request, arrival)
            await asyncio.to_thread(arrival.finish)
        except BaseException:
            await asyncio.to_thread(arrival.give_up)
            raise
    except ContentTooLarge:
        raise _too_large(store.limits.max_bytes) from None
    except ContentStoreFull as error:
        raise _full(str(error)) from None
    except ContentMismatch:
        detail = (
            f"The body has another SHA-256 than {digest}. It was damaged on the way, or the name is wrong."
        )
        raise ProblemError(
            Problem(
                status=422,
                code="digest_mismatch",
                title="Wrong content",
                detail=detail,
                facts={"digest": digest},
            )
        ) from None
    except OSError as error:
        raise _full(error.strerror or str(error)) from None
    finally:
        rest.arrivals -= 1
    await until_copied(rest, [(tenant_id, digest)], PUT_PATIENCE_S)
    return _found(rest, tenant_id, digest)


async def _take(request: Request[Any, Any, Any], arrival: Arrival) -> None:
    """Pieces are gathered: a thread for each packet would cost more than the write."""
    pieces = request.stream()
    gathered = bytearray()
    while True:
        try:
            async with asyncio.timeout(_SILENT_S):
                piece = await anext(pieces, b"")
        except TimeoutError:
            detail = f"No byte of the body arrived for {_SILENT_S:g} s."
            problem = Problem(status=408, code="too_slow", title="Too slow", detail=detail)
            raise ProblemError(problem, {"connection": "close"}) from None
        gathered += piece
        if gathered and (not piece or len(gathered) >= PIECE_BYTES):
            await asyncio.to_thread(arrival.write, bytes(gathered))
            gathered.clear()
        if not piece:
            return


def _found(rest: Backend, tenant_id: TenantId, digest: str) -> UploadAnswer:
    size = store_of(rest).find(tenant_id, digest)
    if size is None:
        raise ProblemError(unknown_upload(tenant_id, digest))
    return UploadAnswer(sha256=digest, tenant_id=tenant_id, size_bytes=size)


def _tenant(who: Principal, given: str | None) -> TenantId:
    by = submitter_of(who)
    tenant_id = tenant_id_of(given or (by.tenant if by is not None else "") or DEFAULT_TENANT)
    if not may(who, Action.SUBMIT_TASK, tenant_id):
        note_tenant(tenant_id)
        detail = f"tenant is {tenant_id!r}; {who.user} may upload for: {', '.join(who.tenants or ())}."
        errors = [FieldError(path="tenant", detail=detail)]
        raise ProblemError(
            Problem(
                status=403, code="tenant_not_allowed", title="Not your tenant", detail=detail, errors=errors
            )
        )
    return tenant_id


def _digest(text: str) -> str:
    if not DIGEST.fullmatch(text):
        raise invalid([FieldError(path="sha256", detail=f"Expected {A_DIGEST}, got {text[:80]!r}.")])
    return text


def _announced(request: Request[Any, Any, Any], max_bytes: int) -> int:
    """The size of the body; without Content-Length, the most that it may have."""
    given = request.headers.get("content-length", "")
    if not given.isdigit():
        return max_bytes
    if len(given) > 18 or int(given) > max_bytes:
        raise _too_large(max_bytes)
    return int(given)


def _too_large(max_bytes: int) -> ProblemError:
    detail = (
        f"The upload may have at most {max_bytes:,} bytes (storage.upload_max_mb). Leave out data that the task can "
        "read from a shared file system."
    )
    return ProblemError(
        Problem(
            status=413,
            code="upload_too_large",
            title="The upload is too large",
            detail=detail,
            facts={"max_bytes": max_bytes},
        )
    )


def _full(why: str) -> ProblemError:
    detail = f"There is no room for the upload: {why}. Nothing was stored. Try again later, or ask an administrator."
    return ProblemError(
        Problem(status=507, code="uploads_full", title="No room", detail=detail, facts={"why": why})
    )


ROUTES: tuple[Any, ...] = (upload_room, find_upload, has_upload, put_upload)
