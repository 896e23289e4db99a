"""execute(state, command): decide, then apply. A pass repeats that, grant by grant."""

from __future__ import annotations

from dgpu.core.apply import apply
from dgpu.core.commands import Command, RunPass
from dgpu.core.decide import decide
from dgpu.core.decision import Decision
from dgpu.core.events import Event
from dgpu.core.policy.place import grant
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState


def execute(state: ClusterState, command: Command) -> Decision:
    """The events are applied when it returns; a refusal changed nothing."""
    if type(command) is RunPass:
        return run_pass(state, command)
    decision = decide(state, command)
    if not isinstance(decision, Rejection):
        for event in decision:
            apply(state, event)
    return decision


def run_pass(state: ClusterState, command: RunPass) -> tuple[Event, ...]:
    """Tries the lines that a change may have let in, in order. A line whose head does not fit sleeps, and with it all
    of the same demand: during a pass, room only shrinks.
    """
    waiting = state.waiting
    waiting.advance(command.at)
    if command.full:
        waiting.wake_all()
        state.rooms.improved.clear()
    else:
        waiting.wake_fitting(state.rooms)
    events: list[Event] = []
    for _ in range(command.limit):
        granted = next_grant(state, command.at)
        if not granted:
            break
        for event in granted:
            apply(state, event)
        events.extend(granted)
    return tuple(events)


def next_grant(state: ClusterState, at: int) -> tuple[Event, ...]:
    waiting = state.waiting
    while (first := waiting.first_awake()) is not None:
        crowd, task_id = first
        granted = grant(state, task_id, crowd.demand, at)
        if granted:
            return granted
        waiting.block(crowd)
    return ()
