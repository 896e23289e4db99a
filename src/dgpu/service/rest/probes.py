"""Is it alive, can it serve. Asked often and early, so they need nothing but the backend."""

from __future__ import annotations

from dgpu.file_limit import file_limit, open_files
from dgpu.journal.journal import Room
from dgpu.service.rest.backend import Backend
from dgpu.wire.answers import Health, Ready
from dgpu.wire.connections import Connections

PATHS = frozenset({"/health", "/ready"})


async def health(backend: Backend) -> tuple[int, Health]:
    return 200, Health(status="ok", version=backend.options.version)


async def readiness(backend: Backend) -> tuple[int, Ready]:
    runtime = backend.runtime
    index = runtime.committed_index
    # As the follower last said: the file itself may be busy with someone's list or report.
    seen = None if backend.follower is None else backend.follower.seen_index
    detail = ""
    if runtime.trouble:
        detail = f"No new tasks are taken: {runtime.trouble}."
    elif not runtime.ready and runtime.room is Room.OK:
        detail = "The journal is being read."
    elif runtime.room is not Room.OK:
        detail = "The disk is full: no new tasks are taken."
    elif runtime.history_behind:
        detail = (
            "The history does not advance and too many finished tasks are in memory: no new tasks are taken."
        )
    answer = Ready(
        ready=not detail,
        role=backend.options.role,
        epoch=runtime.epoch,
        journal_index=index,
        storage_full=runtime.room is not Room.OK and not runtime.trouble,
        history_lag=None if seen is None else max(0, index - seen),
        detail=detail,
        epoch_unknown=runtime.epoch_unknown,
        connections=connections_of(backend),
    )
    return 503 if detail else 200, answer


def connections_of(backend: Backend) -> Connections:
    doors = backend.doors
    return Connections(
        http=doors.count,
        http_max=doors.limits.total,
        http_refused=doors.refused,
        http_shed=doors.shed,
        http_unread=doors.unread,
        agents=doors.agents.open,
        agents_max=doors.agents.max,
        agents_closed=doors.agents.closed,
        files=open_files(),
        files_max=file_limit(),
    )
