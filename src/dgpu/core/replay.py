"""From events to a state: what recovery, the follower, time travel and the tests do alike."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.core.apply.table import apply
from dgpu.core.events import Event
from dgpu.core.state import ClusterState


def replay(events: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """On a state of its own, or on the given one, which it changes and returns."""
    state = ClusterState() if state is None else state
    for event in events:
        apply(state, event)
    return state
