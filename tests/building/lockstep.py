"""Equal states decide alike: a state, its fork, and one made anew from its parts."""

from __future__ import annotations

from dgpu.core.commands import Command
from dgpu.core.decision import Decision
from dgpu.core.execute import execute
from dgpu.core.parts import PART_NAMES, Parts
from dgpu.core.state import ClusterState


def execute_alike(state: ClusterState, command: Command) -> Decision:
    """On the state, with the same result as on the two others. A pass over the state made anew is the plain algorithm:
    no line sleeps there, and no index has seen anything but the state.
    """
    plain, forked = execute(remade(state), command), execute(state.fork(), command)
    decision = execute(state, command)
    assert decision == plain, "an index steers the decision"
    assert forked == plain, "a fork decides otherwise"
    return decision


def remade(state: ClusterState) -> ClusterState:
    parts = {}
    for name in PART_NAMES:
        part = getattr(state, name)
        parts[name] = dict(sorted(part.items())) if isinstance(part, dict) else part
    twin = ClusterState.from_parts(Parts(**parts))
    twin.key_ring = state.key_ring.copy()
    return twin
