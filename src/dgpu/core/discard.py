"""The end of a fork of the state."""

from __future__ import annotations

from dgpu.core.state import ClusterState


def discard(fork: ClusterState) -> None:
    """Breaks its reference cycles; the fork cannot be used any more."""
    fork.queue.discard()
