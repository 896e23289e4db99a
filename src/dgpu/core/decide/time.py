"""Changes caused by passing time, in bounded portions, and the takeover by a new scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from dgpu.core.commands import BeginEpoch, Tick
from dgpu.core.decide.calls import idle_workers
from dgpu.core.decide.endings import time_over
from dgpu.core.decide.health import due_steps
from dgpu.core.decide.quota import charge_due
from dgpu.core.decision import Decision
from dgpu.core.events import EpochBegan, Event, KeysForgotten, TasksForgotten
from dgpu.core.model.idempotency import MIN_KEY_AGE_MS, KeyRing
from dgpu.core.model.ids import TaskId
from dgpu.core.model.wall_span import newest_span
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import goes_on

LOSS_ACCEPTED: Final = 1 << 53  # as `no_pass_before`: a loss was accepted, and no epoch has begun since
PORTION: Final = 1_000
MAX_TENANTS_AT_ONCE: Final = 16


def decide_begin_epoch(state: ClusterState, command: BeginEpoch) -> Decision:
    """The new epoch is above every epoch and task id known inside or outside the journal."""
    return (
        EpochBegan(
            at=command.at,
            epoch=max(state.epoch, command.above_epoch) + 1,
            settings=command.settings,
            unconfirms=True,
            cluster_id=state.cluster_id or command.cluster_id,
            nonce=command.nonce,
            next_task_id=TaskId(max(state.next_task_id, command.above_task + 1)),
            lost_tail=command.lost_tail or state.no_pass_before == LOSS_ACCEPTED,
            no_pass_before=_no_pass_before(state, command),
        ),
    )


def _no_pass_before(state: ClusterState, command: BeginEpoch) -> int:
    """The time until every run under a lost lease has been stopped or frozen; 0: there is none.

    If a scheduler ends during the wait, the next one continues it. If time was not counted since then, because the
    machine was off, only the journal proves that the time has passed.
    """
    over_at = state.no_pass_before
    if command.lost_tail or over_at == LOSS_ACCEPTED:
        return command.at + command.lost_wait_ms
    if over_at <= state.last_at:
        return 0
    if goes_on(newest_span(state.wall), command.wall):
        return over_at if over_at > command.at else 0
    return command.at + command.lost_wait_ms


def decide_tick(state: ClusterState, command: Tick) -> Decision:
    events: list[Event] = [time_over(task, command.at) for task in islice(state.expired(command.at), PORTION)]
    events += islice(due_steps(state, command.at), PORTION)
    if state.workers:
        events += idle_workers(state, command.at)
    return (
        *charge_due(state, command.at),
        *events,
        *_forget_tasks(state, command),
        *_forget_keys(state, command),
    )


def forget_due(state: ClusterState, history_at: int, at: int) -> bool:
    """True: the next Tick forgets tasks. The service then sends Ticks in sequence until nothing is due."""
    settings = state.settings
    if not state.ended:
        return False
    ended_at = state.ended[0][0]
    too_many = state.ended_count > settings.keep_finished
    return ended_at <= history_at and (too_many or ended_at <= at - settings.keep_finished_ms)


def _forget_tasks(state: ClusterState, command: Tick) -> tuple[Event, ...]:
    """Ended tasks are kept for a while, and until the history holds them."""
    if not forget_due(state, command.history_at, command.at):
        return ()
    too_many = state.ended_count - state.settings.keep_finished
    too_old_at = command.at - state.settings.keep_finished_ms
    forgotten = tuple(
        task_id
        for place, (ended_at, task_id) in enumerate(islice(_oldest_first(state.ended), PORTION))
        if ended_at <= command.history_at and (place < too_many or ended_at <= too_old_at)
    )
    return (TasksForgotten(at=command.at, task_ids=forgotten),) if forgotten else ()


def _oldest_first(heap: list[tuple[int, TaskId]]) -> Iterator[tuple[int, TaskId]]:
    """The entries of a heap in order, without changing it. The first k cost k log k, at any length of the heap."""
    ahead = [(heap[0], 0)]
    while ahead:
        entry, place = heappop(ahead)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))


def _forget_keys(state: ClusterState, command: Tick) -> tuple[Event, ...]:
    """Keys are dropped when they expire. If there are nearly too many, the oldest are dropped after an hour."""
    ring, settings = state.key_ring, state.settings
    if not ring.count:
        return ()
    over_at = command.at - settings.idempotency_ms
    early_at = command.at - MIN_KEY_AGE_MS
    if ring.oldest_at <= over_at:
        return _keys_before(ring, command.at, over_at, PORTION, "")
    if ring.oldest_at > early_at:
        return ()
    events: list[Event] = []
    for tenant, keys in ring.by_tenant.items():
        excess = min(PORTION, len(keys) - _nearly(settings.max_tenant_keys))
        if excess > 0 and len(events) < MAX_TENANTS_AT_ONCE:
            events += _keys_before(ring, command.at, early_at, excess, tenant)
    excess = min(PORTION, ring.count - _nearly(settings.max_keys))
    if not events and excess > 0:
        events += _keys_before(ring, command.at, early_at, excess, "")
    return tuple(events)


def _keys_before(ring: KeyRing, at: int, over_at: int, number: int, tenant: str) -> tuple[Event, ...]:
    oldest = ring.oldest(over_at + 1, number + 1, tenant)
    if not oldest:
        return ()
    before = over_at + 1
    if len(oldest) > number:
        # Keys of the same time are dropped together.
        before = min(before, max(oldest[number], oldest[0] + 1))
    return (KeysForgotten(at=at, before=before, tenant_id=tenant),)


def _nearly(limit: int) -> int:
    return limit - limit // 8
