"""The end of a fork of the state.

Lanes, crowds, lines and accounts refer to each other. Without this, a fork with a copy of every task stays in memory until
the next garbage collection, which comes rarely.
"""

from __future__ import annotations

from dgpu.core.state import ClusterState


def discard(fork: ClusterState) -> None:
    """Breaks its reference cycles; the fork cannot be used any more."""
    waiting = fork.waiting
    for line in waiting.lines.values():
        line.crowd.lines.clear()
        line.account.lines.clear()
    for lane in waiting.lanes.values():
        lane.other = None
        lane.crowds.clear()
        lane.ready.clear()
        lane.turned_away.clear()
        lane.refused.clear()
