"""What the passing of time does, in bounded portions, and a new scheduler taking over."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import Final

from dgpu.core.commands import BeginEpoch, Tick
from dgpu.core.decide_health import due_steps
from dgpu.core.decide_quota import charge_due
from dgpu.core.decision import Decision
from dgpu.core.endings import time_over
from dgpu.core.events import EpochBegan, Event, KeysForgotten, TasksForgotten
from dgpu.core.state import ClusterState

PORTION: Final = 1_000


def decide_begin_epoch(state: ClusterState, command: BeginEpoch) -> Decision:
    return (EpochBegan(at=command.at, epoch=state.epoch + 1, settings=command.settings),)


def decide_tick(state: ClusterState, command: Tick) -> Decision:
    events: list[Event] = [time_over(task, command.at) for task in islice(state.expired(command.at), PORTION)]
    events += islice(due_steps(state, command.at), PORTION)
    return (
        *charge_due(state, command.at),
        *events,
        *_forget_tasks(state, command),
        *_forget_keys(state, command),
    )


def _forget_tasks(state: ClusterState, command: Tick) -> tuple[Event, ...]:
    """Tasks that ended are kept for a while, and until the history holds them."""
    settings = state.settings
    too_many = state.ended_count - settings.keep_finished
    too_old_at = command.at - settings.keep_finished_ms
    if not state.ended or (too_many <= 0 and state.ended[0][0] > too_old_at):
        return ()
    forgotten = tuple(
        task_id
        for place, (ended_at, task_id) in enumerate(nsmallest(PORTION, state.ended))
        if ended_at <= command.history_at and (place < too_many or ended_at <= too_old_at)
    )
    return (TasksForgotten(at=command.at, task_ids=forgotten),) if forgotten else ()


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
