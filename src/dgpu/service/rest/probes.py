"""Liveness and readiness. Requested often and early, so they need only the backend."""

from __future__ import annotations

from urllib.parse import parse_qsl

from dgpu.file_limit import file_limit, open_files
from dgpu.journal.journal import Room
from dgpu.service.leadership.standing import Standing
from dgpu.service.loop.runtime import Runtime
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend
from dgpu.wire.answers import Health, Ready
from dgpu.wire.connections import Connections
from dgpu.wire.wall_time import words_of_ms

_MAX_QUERY = 1_000
MASTER = "master"
PATHS = frozenset({"/health", "/ready"})


async def health(backend: Backend, _query: bytes = b"") -> tuple[int, Health]:
    return 200, Health(status="ok", version=backend.options.version)


async def readiness(backend: Backend, query: bytes = b"") -> tuple[int, Ready]:
    """With `?role=master`, only the master is ready: for load balancers. Never waits for the engine."""
    _refuse_other_roles(query)
    runtime, standing = backend.runtime, backend.options.standing
    index = runtime.committed_index
    # From the follower's last message: the file itself may be busy with a list or a report.
    seen = None if backend.follower is None else backend.follower.seen_index
    detail = ""
    if runtime.trouble:
        detail = f"No new tasks are accepted: {runtime.trouble}."
    elif not standing.is_lone and (away := _why_away(standing, query)):
        detail = away
    elif not runtime.ready and runtime.leads and runtime.room is Room.OK:
        detail = "The journal is being read."
    elif runtime.room is not Room.OK:
        detail = "The disk is full: no new tasks are accepted."
    elif runtime.history_behind:
        detail = "The history does not advance and too many finished tasks are in memory: no new tasks are accepted."
    is_ready = not detail
    jump = runtime.clock.recent_jump()
    answer = Ready(
        ready=is_ready,
        role=backend.options.role,
        epoch=runtime.epoch,
        journal_index=index,
        storage_full=runtime.room is not Room.OK and not runtime.trouble,
        history_lag=None if seen is None else max(0, index - seen),
        epoch_unknown=runtime.epoch_unknown,
        connections=connections_of(backend),
        clock_jump_seconds=0 if jump is None else jump.by_ms / 1000,
        clock_error_seconds=runtime.clock.off_by_ms / 1000,
        clocks_ahead_seconds={node: ahead_ms / 1000 for node, ahead_ms in runtime.clocks_ahead().items()},
        detail=detail or _clock_detail(runtime),
        lag_ms=standing.lag_ms(),
        master=standing.master,
        engine=standing.engine_trouble(),
        schedulers=_urls(standing),
    )
    return 200 if is_ready else 503, answer


def _urls(standing: Standing) -> list[str]:
    seen = () if standing.peers is None else standing.peers.schedulers()
    return [each.announced.http for each in seen if each.announced.role != "stopped"]


def _roles(query: bytes) -> list[str]:
    return [value for name, value in parse_qsl(query[:_MAX_QUERY].decode("latin-1")) if name == "role"]


def _refuse_other_roles(query: bytes) -> None:
    """A misspelt role would make every scheduler ready, and a load balancer would send writes to a standby."""
    for role in _roles(query):
        if role != MASTER:
            raise listing.bad_query("role", role, f"{MASTER} or no role")


def _why_away(standing: Standing, query: bytes) -> str:
    if MASTER in _roles(query) and standing.role != MASTER:
        return f"This scheduler is a standby. The master is {standing.master or 'not known'}."
    lag_ms = standing.lag_ms()
    if lag_ms is None:
        return "The journal is being read."
    if lag_ms > standing.read_stale_max_ms:
        return (
            f"This scheduler is {lag_ms // 1_000} s behind: {standing.engine_trouble() or 'it catches up'}."
        )
    return ""


def _clock_detail(runtime: Runtime) -> str:
    """Not a reason for 503: only displayed times depend on the wall clock."""
    jump = runtime.clock.recent_jump()
    ahead = runtime.clocks_ahead()
    texts = []
    if jump is not None:
        way = "forward" if jump.by_ms > 0 else "back"
        texts.append(f"The wall clock was set {way} by {words_of_ms(abs(jump.by_ms))}.")
    if ahead:
        furthest = max(ahead, key=lambda node: abs(ahead[node]))
        amount = words_of_ms(abs(ahead[furthest]))
        texts.append(f"The clocks of {len(ahead)} nodes differ from this one, of {furthest} by {amount}.")
    return " ".join(texts)


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
