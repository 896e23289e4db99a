"""Builds a state from events, for recovery, the follower, time travel and tests."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.core.apply.table import apply
from dgpu.core.events import Event
from dgpu.core.state import ClusterState


def replay(events: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """Uses a new state, or changes and returns the given one."""
    state = ClusterState() if state is None else state
    for event in events:
        apply(state, event)
    return state
