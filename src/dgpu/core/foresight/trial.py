"""What a change would do, found by making it on a fork of the state. The state itself stays as it is."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.commands import RunPass, SetQuota
from dgpu.core.discard import discard
from dgpu.core.events import Event, GangPlaced, TaskPlaced, TaskStopRequested
from dgpu.core.execute import execute
from dgpu.core.index.limits import schedulable, settle_pools
from dgpu.core.model.ids import TaskId
from dgpu.core.model.quota import Split, split
from dgpu.core.model.task import Pool
from dgpu.core.rejections import Rejection
from dgpu.core.rules.admission import available_milli, has_quota, used_milli
from dgpu.core.state import ClusterState

MAX_TOLD: Final = 1_000
_MAX_PLACED: Final = 10_000


class QuotaTrial(msgspec.Struct, frozen=True, kw_only=True):
    parts: Split
    used_milli: dict[Pool, int]
    available_milli: dict[Pool, int]  # before anything starts
    starts: tuple[TaskId, ...] = ()  # would start at once, and do not without the change
    waits: tuple[TaskId, ...] = ()  # would be kept waiting by their pool's quota, and are not now
    drains: tuple[TaskId, ...] = ()  # run beyond what their pool would have; the newest
    stops: tuple[TaskId, ...] = ()  # would be asked to stop
    refused: Rejection | None = None


def try_quota(state: ClusterState, command: SetQuota, at: int) -> QuotaTrial:
    today, changed = state.fork(), state.fork()
    online_ppm = state.quota.online_ppm if command.online_ppm is None else command.online_ppm
    parts = split(schedulable(state), online_ppm)
    used = {pool: used_milli(state, pool) for pool in Pool}
    drains = _beyond(state, parts, used)
    decision = execute(changed, msgspec.structs.replace(command, at=at))
    if isinstance(decision, Rejection):
        left = {pool: max(0, parts.milli(pool) - used[pool]) for pool in Pool}
        discard(today)
        discard(changed)
        return QuotaTrial(parts=parts, used_milli=used, available_milli=left, drains=drains, refused=decision)
    left = {pool: available_milli(changed, pool) for pool in Pool}
    before = _started(execute(today, RunPass(at=at, limit=_MAX_PLACED)))
    events = execute(changed, RunPass(at=at, limit=_MAX_PLACED))
    after = _started(events)
    stops = () if isinstance(events, Rejection) else events
    waits = {*(before.keys() - after.keys()), *(_barred(changed) - _barred(today))}
    discard(today)
    discard(changed)
    return QuotaTrial(
        parts=parts,
        used_milli=used,
        available_milli=left,
        starts=_told(after.keys() - before.keys()),
        waits=_told(waits),
        drains=drains,
        stops=_told({event.task_id for event in stops if isinstance(event, TaskStopRequested)}),
    )


def _started(events: tuple[Event, ...] | Rejection) -> dict[TaskId, None]:
    if isinstance(events, Rejection):
        return {}
    return {event.task_id: None for event in events if isinstance(event, TaskPlaced | GangPlaced)}


def _barred(state: ClusterState) -> set[TaskId]:
    """Tasks that wait for their pool's quota; of many, the oldest of each line."""
    settle_pools(state)
    found: set[TaskId] = set()
    for pool in Pool:
        use = state.queue.pools[pool]
        for line in use.ready:
            if not has_quota(state, use, line.claim.milli):
                found.update(line.ready[:MAX_TOLD])
    return found


def _beyond(state: ClusterState, parts: Split, used: dict[Pool, int]) -> tuple[TaskId, ...]:
    excess = {pool: used[pool] - parts.milli(pool) for pool in Pool}
    found: set[TaskId] = set()
    for lease in reversed(state.leases.values()):
        if max(excess.values()) <= 0:
            break
        pool = state.shapes[state.tasks[lease.task_id].shape_id].pool
        if excess[pool] > 0 and lease.gpu_milli:
            excess[pool] -= lease.gpu_milli
            found.add(lease.task_id)
    return _told(found)


def _told(task_ids: set[TaskId]) -> tuple[TaskId, ...]:
    return tuple(sorted(task_ids)[:MAX_TOLD])
