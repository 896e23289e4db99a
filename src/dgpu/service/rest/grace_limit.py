"""The operator's limit on the time between TERM and KILL: a pre-empting task waits that long."""

from __future__ import annotations

import msgspec

from dgpu.core.model.task import TaskDetail
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.requests import Entries

KEY = "scheduler.max_grace_seconds"
_decode_detail = msgspec.json.Decoder(TaskDetail).decode


def refuse_long_grace(backend: Backend, entries: Entries, *, batch: bool = False, path: str = "") -> None:
    max_ms = backend.options.max_grace_ms
    for number, (_, spec) in enumerate(entries):
        if b'"grace_ms"' not in spec.detail:
            continue
        grace_ms = _decode_detail(spec.detail).grace_ms
        if grace_ms > max_ms:
            where = f"tasks[{number}]." if batch else path
            raise ProblemError(_too_long(grace_ms, max_ms, f"{where}grace_seconds"))


def _too_long(grace_ms: int, max_ms: int, path: str) -> Problem:
    detail = (
        f"grace_seconds is {grace_ms / 1000:g}; this cluster allows {max_ms / 1000:g} at most. An administrator can "
        f"change it: {KEY} in scheduler.yaml."
    )
    return Problem(
        status=422,
        code="grace_too_long",
        title="Grace time too long",
        detail=detail,
        errors=[FieldError(path=path, detail=detail)],
        facts={"grace_ms": grace_ms, "max_ms": max_ms, "key": KEY},
    )
