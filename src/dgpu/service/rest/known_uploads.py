"""Whether tasks name uploads that the scheduler has. Without the frame: submits use it."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.core.model.app import App
from dgpu.core.model.ids import TenantId
from dgpu.service.content.store import ContentStore, key_of
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.requests import Entries
from dgpu.wire.uploads import args_ref_of, upload_of

PUT_PATIENCE_S = 60.0  # a client expects that an upload takes long
SUBMIT_PATIENCE_S = 3.0  # below the time after which clients look for another scheduler


async def refuse_unknown_uploads(
    rest: Backend, entries: Entries, apps: tuple[App, ...] = (), *, batch: bool = False
) -> None:
    """An upload that is not there would only fail later, on a node. Waits for its copy on a standby."""
    of_apps = {app.id: upload_of(app.spec.detail) for app in apps}
    checked: set[tuple[TenantId, str]] = set()
    for number, (_, spec) in enumerate(entries):
        upload = of_apps[spec.shape.app] if spec.shape.app in of_apps else upload_of(spec.detail)
        for field, digest in (("upload", upload), ("args_ref", args_ref_of(spec.detail))):
            key = (spec.shape.tenant_id, digest)
            if not digest or key in checked:
                continue
            checked.add(key)
            if store_of(rest).find(*key) is None:
                raise ProblemError(unknown_upload(*key, f"tasks[{number}].{field}" if batch else field))
    if checked:
        await until_copied(rest, checked, SUBMIT_PATIENCE_S)


async def until_copied(rest: Backend, content: Iterable[tuple[TenantId, str]], patience_s: float) -> None:
    """A lone scheduler, and one whose standbys cannot take it, goes on with one copy."""
    copies = rest.files.content_copies
    if copies is not None:
        await copies.until_copied([key_of(*each) for each in content], patience_s)


def store_of(rest: Backend) -> ContentStore:
    if rest.files.content is None:
        detail = "This scheduler stores no uploads."
        raise ProblemError(Problem(status=503, code="no_uploads", title="No uploads", detail=detail))
    return rest.files.content


def unknown_upload(tenant_id: TenantId, digest: str, path: str = "") -> Problem:
    detail = (
        f"The scheduler has no upload {digest} of tenant {tenant_id}. Send it again: dgpu submit --upload."
    )
    return Problem(
        status=422 if path else 404,
        code="unknown_upload",
        title="No such upload",
        detail=detail,
        errors=[FieldError(path=path, detail=detail)] if path else [],
        facts={"digest": digest, "tenant_id": tenant_id},
    )
