"""The attempts of a task: from the history, and the running one from memory."""

from __future__ import annotations

import asyncio
import sqlite3

from msgspec.structs import replace

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.history.measured import usage_by_lease
from dgpu.service.history.reader import HistoryDamaged, PastAttempt
from dgpu.service.rest.backend import Backend
from dgpu.service.views.task_usage import usage_answer
from dgpu.wire.answers import Attempt, instant, instant_or_none
from dgpu.wire.usage_answers import TaskUsage

MAX_ATTEMPTS = 100
MAX_RANKS = 64  # of a running gang that are asked what they use


async def attempts_of(backend: Backend, task_id: TaskId) -> list[Attempt]:
    """In order, the latest hundred. The history may be a moment behind; the running attempt comes from memory."""
    try:
        rows = await asyncio.to_thread(backend.history.attempts, task_id)
        measured = await asyncio.to_thread(usage_by_lease, backend.history, task_id)
    except (HistoryDamaged, sqlite3.OperationalError):
        rows, measured = [], {}  # the task itself is known without it
    by_number: dict[int, Attempt] = {}
    used: dict[int, list[AttemptUsage]] = {}
    for row in rows:
        known = by_number.get(row.attempt)
        by_number[row.attempt] = _of_row(row) if known is None else _with_rank(known, row)
        if row.lease_id in measured:
            used.setdefault(row.attempt, []).append(measured[row.lease_id])
    for number, ranks in used.items():
        by_number[number] = replace(by_number[number], usage=usage_answer(ranks))
    current = await backend.runtime.read(lambda state: _current(state, task_id))
    if current is not None and (
        current.attempt not in by_number or by_number[current.attempt].ended_at is None
    ):
        by_number[current.attempt] = replace(current, usage=await _used_so_far(backend, task_id))
    return [by_number[number] for number in sorted(by_number)][-MAX_ATTEMPTS:]


async def _used_so_far(backend: Backend, task_id: TaskId) -> TaskUsage | None:
    """None: not running, or a node does not answer at once. Half a gang would look like a small use."""

    def look(state: ClusterState) -> list[tuple[NodeId, LeaseId]]:
        task = state.tasks.get(task_id)
        if task is None or task.status is not TaskStatus.RUNNING:
            return []
        leases = [state.leases[lease_id] for lease_id in state.leases_of(task) if lease_id in state.leases]
        return [(lease.node_id, lease.id) for lease in leases]

    held = await backend.runtime.read(look)
    if not 0 < len(held) <= MAX_RANKS:
        return None
    told = await asyncio.gather(*(backend.files.measure(node_id, lease_id) for node_id, lease_id in held))
    ranks = [each for each in told if each is not None and each != AttemptUsage()]
    return usage_answer(ranks) if len(ranks) == len(held) else None


def _of_row(row: PastAttempt) -> Attempt:
    return Attempt(
        attempt=row.attempt,
        node=row.node_id,
        nodes=[row.node_id],
        gpus=list(row.gpu_ids),
        placed_at=instant(row.placed_at),
        started_at=instant_or_none(row.started_at),
        ended_at=instant_or_none(row.ended_at),
        exit_code=row.exit_code,
        reason=row.reason,
        error=row.error,
    )


def _with_rank(known: Attempt, row: PastAttempt) -> Attempt:
    """Each rank of a gang has a row; the first rank with a reason gives the reason of the attempt."""
    return replace(
        known,
        nodes=[*known.nodes, row.node_id],
        gpus=[*known.gpus, *row.gpu_ids],
        started_at=known.started_at or instant_or_none(row.started_at),
        ended_at=known.ended_at or instant_or_none(row.ended_at),
        exit_code=row.exit_code if known.exit_code is None else known.exit_code,
        reason=known.reason or row.reason,
        error=known.error or row.error,
    )


def _current(state: ClusterState, task_id: TaskId) -> Attempt | None:
    task = state.tasks.get(task_id)
    if task is None or not task.attempt or task.node_id is None or task.status is TaskStatus.PENDING:
        return None
    lease = state.leases.get(task.lease_id)
    if task.status is TaskStatus.RUNNING and lease is None:
        return None
    over = task.status.is_final
    return Attempt(
        attempt=task.attempt,
        node=task.node_id,
        nodes=list(task.node_ids) or [task.node_id],
        gpus=list(task.gpu_ids),
        placed_at=instant_or_none(lease.granted_at if lease is not None else task.started_at),
        started_at=instant_or_none(task.started_at),
        ended_at=instant_or_none(task.finished_at) if over else None,
        exit_code=task.exit_code if over else None,
        reason=task.reason if over else "",
        error=task.error if over else "",
    )
