"""The effect of a change: the change is made on its own state with the same code, and both states are run ahead."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dgpu.core.commands import Command, LoseNode, ReleaseNode
from dgpu.core.events import Event, TaskFinished, TaskRequeued, TasksSubmitted, TaskStopRequested
from dgpu.core.foresight.explain import Explanation, explain_task
from dgpu.core.foresight.fork import both_ways
from dgpu.core.foresight.forward import ForwardRun, Start, Stop
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.rejections import Rejection
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MAX_COMPARED: Final = 1_000  # waiting tasks, the first in the queue
MAX_EXPLAINED: Final = 10  # of the submitted tasks that would wait


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """A task that would start now only with the change."""

    task_id: TaskId
    node_ids: tuple[NodeId, ...]
    is_new: bool = False


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """A task that the forecast starts later than without the change. None: the start is unknown."""

    task_id: TaskId
    before_at: int
    after_at: int | None


class Stops(msgspec.Struct, frozen=True, kw_only=True):
    """A running task that would not continue."""

    task_id: TaskId
    node_id: NodeId
    reason: str


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted task that would not start at once."""

    task_id: TaskId
    starts_at: int | None
    explanation: Explanation | None = None  # only for the first ones


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    starts: tuple[Starts, ...] = ()
    delays: tuple[Delays, ...] = ()
    stops: tuple[Stops, ...] = ()
    waits: tuple[Waits, ...] = ()
    rejected: Rejection | None = None


class _Run(NamedTuple):
    starts: dict[TaskId, Start]
    now: dict[TaskId, Start]  # starts at once
    new: tuple[TaskId, ...]
    stopped: dict[TaskId, Stop]
    explained: dict[TaskId, Explanation]


def whatif(state: ClusterState, change: tuple[Command, ...], at: int) -> Effect:
    """The first refusal is the result."""
    compared = set(queue(state, limit=MAX_COMPARED))
    both = both_ways(state, change, at, lambda fork, events: _run(state, fork, events, at, compared))
    return Effect(rejected=both) if isinstance(both, Rejection) else _compare(*both, compared)


def lose(node_id: NodeId) -> tuple[Command, ...]:
    """As if its tasks were certain to have ended: they wait again."""
    reason = f"node {node_id} is lost"
    return (LoseNode(node_id=node_id, reason=reason), ReleaseNode(node_id=node_id, reason=reason))


def _run(
    state: ClusterState, fork: ClusterState, events: tuple[Event, ...], at: int, compared: set[TaskId]
) -> _Run:
    """Runs `fork` ahead, after the events of the change."""
    places = {lease.task_id: lease.node_id for lease in state.leases.values()}
    new = _submitted(events)
    stopped = {
        event.task_id: Stop(places[event.task_id], event.reason)
        for event in events
        if isinstance(event, TaskRequeued | TaskFinished | TaskStopRequested) and event.task_id in places
    }
    ahead = ForwardRun(fork, at, percent=50, run_times=state.run_times)
    ahead.pass_now()
    now = dict(ahead.starts)
    waiting = [task_id for task_id in new if task_id not in now]
    explained = {each: explain_task(fork, fork.tasks[each], at) for each in waiting[:MAX_EXPLAINED]}
    ahead.run(compared | set(new[:MAX_COMPARED]))
    for task_id, stop in ahead.stops.items():
        if task_id in places:
            stopped.setdefault(task_id, stop)
    return _Run(ahead.starts, now, tuple(new), stopped, explained)


def _submitted(events: tuple[Event, ...]) -> list[TaskId]:
    return [
        TaskId(number)
        for event in events
        if isinstance(event, TasksSubmitted)
        for number in range(event.first_id, event.first_id + sum(count for count, _ in event.entries))
    ]


def _compare(unchanged: _Run, changed: _Run, compared: set[TaskId]) -> Effect:
    new = set(changed.new)
    before, after = unchanged.starts, changed.starts
    starts = tuple(
        Starts(task_id=task_id, node_ids=start.node_ids, is_new=task_id in new)
        for task_id, start in sorted(changed.now.items())
        if task_id not in unchanged.now
    )
    delays = [
        Delays(task_id=task_id, before_at=before[task_id].at, after_at=_at(after.get(task_id)))
        for task_id in sorted(compared)
        if task_id in before and _is_later(after.get(task_id), before[task_id])
    ]
    stops = tuple(
        Stops(task_id=task_id, node_id=stop.node_id, reason=stop.reason)
        for task_id, stop in sorted(changed.stopped.items())
        if task_id not in unchanged.stopped
    )
    waits = tuple(
        Waits(task_id=task_id, starts_at=_at(after.get(task_id)), explanation=changed.explained.get(task_id))
        for task_id in changed.new
        if task_id not in changed.now
    )
    return Effect(starts=starts, delays=tuple(delays), stops=stops, waits=waits)


def _at(start: Start | None) -> int | None:
    return None if start is None else start.at


def _is_later(after: Start | None, before: Start) -> bool:
    return after is None or after.at > before.at
