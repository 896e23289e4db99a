"""Answers of a scheduler among several: a standby only reads, and every answer tells its role and age."""

from __future__ import annotations

from typing import Any

from dgpu.service.leadership.standing import Standing
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.loop.read_mark import CURRENT, ReadMark
from dgpu.service.rest import session_calls
from dgpu.service.rest.access import OPEN_PATHS, READING_METHODS
from dgpu.wire.answers import NotMasterProblem, Problem

RETRY_AFTER_SECONDS = 1
# They change no state of the cluster: sessions are of each scheduler, and a what-if is asked of a copy.
_LOCAL_PATHS = session_calls.PATHS | {"/api/v1/whatif"}
# They tell the age of the data, and are needed most while the engine does not answer.
_AGELESS_PATHS = frozenset({"/api/v1/schedulers", "/metrics"})


def refused_by_role(standing: Standing, method: str, path: str) -> Problem | None:
    """Why this scheduler cannot answer the call now. Checked after the rights of the caller."""
    if path in OPEN_PATHS:
        return None
    if standing.role != "master" and method not in READING_METHODS and path.rstrip("/") not in _LOCAL_PATHS:
        return not_master(standing)
    if path in _AGELESS_PATHS:
        return None
    lag_ms = standing.lag_ms()
    if lag_ms is None or lag_ms > standing.read_stale_max_ms:
        return too_stale(standing, lag_ms)
    return None


def not_master(standing: Standing) -> Problem:
    where = f" The master is {standing.master}." if standing.master else " No master is known at the moment."
    return NotMasterProblem(
        status=503,
        code="not_master",
        title="This scheduler is a standby",
        detail=f"Nothing was done: this scheduler only answers reads.{where}",
        facts={"master": standing.master},
        master=standing.master,
    )


def too_stale(standing: Standing, lag_ms: int | None) -> Problem:
    age = "has not read the journal yet" if lag_ms is None else f"is {lag_ms // 1_000} s behind"
    why = standing.engine_trouble()
    return NotMasterProblem(
        status=503,
        code="too_stale",
        title="The engine does not answer",
        detail=f"Nothing was done: this scheduler {age}; ha.read_stale_max is "
        f"{standing.read_stale_max_ms / 1_000:g} s{f' ({why})' if why else ''}. Running tasks continue.",
        facts={"lag_ms": lag_ms, "max_ms": standing.read_stale_max_ms, "why": why or ""},
        master=standing.master,
    )


def of_lost_leadership(error: BaseException, standing: Standing) -> Problem | None:
    """The leadership was lost while the request waited. None: another error."""
    if isinstance(error, NotMaster):
        return not_master(standing)
    if isinstance(error, OutcomeUnknown):
        return NotMasterProblem(
            status=503,
            code="outcome_unknown",
            title="The outcome is unknown",
            detail="This scheduler lost the leadership while it stored the request, which may have been carried out. "
            "Repeat it with the same Idempotency-Key, or look first.",
            master=standing.master,
        )
    return None


def telling_role(standing: Standing, send: Any) -> Any:
    """Adds role and age to the headers of the answer."""
    mark = ReadMark()
    CURRENT.set(mark)

    async def tell(message: Any) -> None:
        if message["type"] == "http.response.start":
            lag_ms = 0 if mark.is_fresh else standing.lag_ms()
            told = [(b"dgpu-role", standing.role.encode())]
            if lag_ms is not None:
                told.append((b"dgpu-lag-ms", b"%d" % lag_ms))
            message = {**message, "headers": [*message.get("headers", ()), *told]}
        await send(message)

    return tell
