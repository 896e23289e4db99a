"""What the passing of time does, in bounded portions, and a new scheduler taking over."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from dgpu.core.commands import BeginEpoch, Tick
from dgpu.core.decide_health import due_steps
from dgpu.core.decide_quota import charge_due
from dgpu.core.decision import Decision
from dgpu.core.endings import time_over
from dgpu.core.events import EpochBegan, Event, KeysForgotten, TasksForgotten
from dgpu.core.ids import TaskId
from dgpu.core.state import ClusterState

PORTION: Final = 1_000


def decide_begin_epoch(state: ClusterState, command: BeginEpoch) -> Decision:
    """Above every epoch and task id that is known inside or outside the journal."""
    return (
        EpochBegan(
            at=command.at,
            epoch=max(state.epoch, command.above_epoch) + 1,
            settings=command.settings,
            unconfirms=True,
            cluster_id=state.cluster_id or command.cluster_id,
            nonce=command.nonce,
            next_task_id=TaskId(max(state.next_task_id, command.above_task + 1)),
            lost_tail=command.lost_tail,
        ),
    )


def decide_tick(state: ClusterState, command: Tick) -> Decision:
    events: list[Event] = [time_over(task, command.at) for task in islice(state.expired(command.at), PORTION)]
    events += islice(due_steps(state, command.at), PORTION)
    return (
        *charge_due(state, command.at),
        *events,
        *_forget_tasks(state, command),
        *_forget_keys(state, command),
    )


def forget_due(state: ClusterState, history_at: int, at: int) -> bool:
    """True: the next Tick forgets tasks. The service then sends Ticks one after the other until nothing is due."""
    settings = state.settings
    if not state.ended:
        return False
    ended_at = state.ended[0][0]
    too_many = state.ended_count > settings.keep_finished
    return ended_at <= history_at and (too_many or ended_at <= at - settings.keep_finished_ms)


def _forget_tasks(state: ClusterState, command: Tick) -> tuple[Event, ...]:
    """Tasks that ended are kept for a while, and until the history holds them."""
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
    """The entries of a heap in order, without changing it. The first k cost k log k, however long the heap is."""
    ahead = [(heap[0], 0)]
    while ahead:
        entry, place = heappop(ahead)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))


def _forget_keys(state: ClusterState, command: Tick) -> tuple[Event, ...]:
    over_at = command.at - state.settings.idempotency_ms
    oldest = [key.created_at for key in islice(state.keys.values(), PORTION + 1)]
    if not oldest or oldest[0] > over_at:
        return ()
    before = over_at + 1
    if len(oldest) > PORTION:
        # Keys of one moment go together.
        before = min(before, max(oldest[-1], oldest[0] + 1))
    return (KeysForgotten(at=command.at, before=before),)
