"""Equal states decide alike: a state, its fork, and one made anew from its parts."""

from __future__ import annotations

from dgpu.core.commands import Command, RunPass
from dgpu.core.decision import Decision
from dgpu.core.execute import execute
from dgpu.core.parts import PART_NAMES, Parts
from dgpu.core.state import ClusterState

_LIVES: int = 20  # commands; then the twins are made again, so that states of every age are compared


class Twins:
    """A fork of a state, and a state made anew from its parts, that live on beside it: each later command has equal
    events on all three. A pass is also compared with the plain algorithm.
    """

    def __init__(self) -> None:
        self._twins: tuple[ClusterState, ...] = ()
        self._left = 0

    def execute(self, state: ClusterState, command: Command) -> Decision:
        if not self._left:
            self._twins, self._left = (state.fork(), remade(state)), _LIVES
        self._left -= 1
        later = [execute(twin, command) for twin in self._twins]
        alike = execute_alike if isinstance(command, RunPass) else execute
        decision = alike(state, command)
        assert later == [decision] * len(later), "a twin that has lived on decides otherwise"
        return decision


def execute_alike(state: ClusterState, command: Command) -> Decision:
    """On the state, with the same result as on one made anew. A pass over that one is the plain algorithm: no line
    sleeps there, and no index has seen anything but the state.
    """
    plain = execute(remade(state), command)
    decision = execute(state, command)
    assert decision == plain, "an index steers the decision"
    return decision


def remade(state: ClusterState) -> ClusterState:
    parts = {}
    for name in PART_NAMES:
        part = getattr(state, name)
        parts[name] = dict(sorted(part.items())) if isinstance(part, dict) else part
    twin = ClusterState.from_parts(Parts(**parts))
    twin.key_ring = state.key_ring.copy()
    return twin
