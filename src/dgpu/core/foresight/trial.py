"""The immediate effect of another quota."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dgpu.core.commands import RunPass, SetQuota
from dgpu.core.decide.schedule import run_pass
from dgpu.core.events import GangPlaced, TaskPlaced, TaskStopRequested
from dgpu.core.foresight.fork import both_ways
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
    available_milli: dict[Pool, int]  # before any task starts
    starts: tuple[TaskId, ...] = ()  # tasks that start at once only with the change
    waits: tuple[TaskId, ...] = ()  # tasks that would wait for their pool's quota, and do not now
    drains: tuple[TaskId, ...] = ()  # running tasks beyond the new quota of their pool; the newest
    stops: tuple[TaskId, ...] = ()  # tasks that would be asked to stop
    refused: Rejection | None = None


class _Pass(NamedTuple):
    available_milli: dict[Pool, int]  # before it
    started: set[TaskId]
    stopped: set[TaskId]
    barred: set[TaskId]


def try_quota(state: ClusterState, command: SetQuota, at: int) -> QuotaTrial:
    online_ppm = state.quota.online_ppm if command.online_ppm is None else command.online_ppm
    parts = split(schedulable(state), online_ppm)
    used = {pool: used_milli(state, pool) for pool in Pool}
    drains = _beyond(state, parts, used)
    both = both_ways(state, (command,), at, lambda fork, _: _pass(fork, at))
    if isinstance(both, Rejection):
        left = {pool: max(0, parts.milli(pool) - used[pool]) for pool in Pool}
        return QuotaTrial(parts=parts, used_milli=used, available_milli=left, drains=drains, refused=both)
    before, after = both
    return QuotaTrial(
        parts=parts,
        used_milli=used,
        available_milli=after.available_milli,
        starts=_told(after.started - before.started),
        waits=_told((before.started - after.started) | (after.barred - before.barred)),
        drains=drains,
        stops=_told(after.stopped),
    )


def _pass(state: ClusterState, at: int) -> _Pass:
    available = {pool: available_milli(state, pool) for pool in Pool}
    events = run_pass(state, RunPass(at=at, limit=_MAX_PLACED))
    return _Pass(
        available,
        {event.task_id for event in events if isinstance(event, TaskPlaced | GangPlaced)},
        {event.task_id for event in events if isinstance(event, TaskStopRequested)},
        _barred(state),
    )


def _barred(state: ClusterState) -> set[TaskId]:
    """Tasks that wait for their pool's quota; if many, the oldest of each line."""
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
