"""Refuses a task that names a target to which no message could be sent."""

from __future__ import annotations

import msgspec

from dgpu.core.model.task import TaskDetail
from dgpu.service.notices.reach import NoTarget
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.requests import Entries

_MARK = b'"notify"'
_decode_detail = msgspec.json.Decoder(TaskDetail).decode


async def refuse_unknown_targets(
    backend: Backend, entries: Entries, *, batch: bool = False, path: str = ""
) -> None:
    if backend.notice_targets is None or not any(_MARK in spec.detail for _, spec in entries):
        return
    secrets = await backend.runtime.read(lambda state: dict(state.secrets))
    known: set[tuple[str, str]] = set()  # a batch names few targets
    for number, (_, spec) in enumerate(entries):
        if _MARK not in spec.detail:
            continue
        for _, name in _decode_detail(spec.detail).notify:
            tenant_id = spec.shape.tenant_id
            if (tenant_id, name) in known:
                continue
            try:
                backend.notice_targets.find(tenant_id, name, secrets)
            except NoTarget as error:
                where = f"tasks[{number}]." if batch else path
                raise ProblemError(_no_target(str(error), f"{where}notify")) from None
            known.add((tenant_id, name))


def _no_target(why: str, path: str) -> Problem:
    detail = f"notify: {why}."
    return Problem(
        status=422,
        code="no_notify_target",
        title="No such target",
        detail=detail,
        errors=[FieldError(path=path, detail=detail)],
        facts={"why": why},
    )
