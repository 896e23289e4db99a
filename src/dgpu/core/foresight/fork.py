"""Tries a change on a fork of the state, with the code that would really make it. The state itself does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from dgpu.core.commands import Command
from dgpu.core.events import Event
from dgpu.core.execute import execute
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState

T = TypeVar("T")


def on_fork(state: ClusterState, look: Callable[[ClusterState], T]) -> T:
    """The result of `look` on a fork, which `look` may change."""
    fork = state.fork()
    try:
        return look(fork)
    finally:
        discard(fork)


def both_ways(
    state: ClusterState,
    change: tuple[Command, ...],
    at: int,
    look: Callable[[ClusterState, tuple[Event, ...]], T],
) -> tuple[T, T] | Rejection:
    """The results of `look` without and with the change. `look` gets a fork and the events of the change. The first
    refusal is returned.
    """
    after = on_fork(state, lambda fork: _changed(fork, change, at, look))
    if isinstance(after, Rejection):
        return after
    return on_fork(state, lambda fork: look(fork, ())), after


def _changed(
    fork: ClusterState,
    change: tuple[Command, ...],
    at: int,
    look: Callable[[ClusterState, tuple[Event, ...]], T],
) -> T | Rejection:
    events = make(fork, change, at)
    return events if isinstance(events, Rejection) else look(fork, events)


def make(state: ClusterState, change: tuple[Command, ...], at: int) -> tuple[Event, ...] | Rejection:
    events: list[Event] = []
    for command in change:
        decided = execute(state, replace(command, at=at))
        if isinstance(decided, Rejection):
            return decided
        events += decided
    return tuple(events)


def discard(fork: ClusterState) -> None:
    """Breaks the reference cycles of a fork. The fork cannot be used afterwards."""
    fork.queue.discard()
