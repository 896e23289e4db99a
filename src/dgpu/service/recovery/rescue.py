"""A snapshot of the scheduler's own memory, for when the follower cannot write one because journal files are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dgpu.core.state import ClusterState
from dgpu.journal.snapshot import write_snapshot
from dgpu.service.loop.runtime import Runtime

_PATIENCE_S = 60.0


async def write_own_snapshot(runtime: Runtime, directory: Path) -> None:
    """It contains everything acknowledged so far. No follower may run: both would write the same files."""

    def take(state: ClusterState) -> tuple[ClusterState, int]:
        twin = state.fork()
        twin.key_ring.detach()  # a thread writes it, while submits add keys
        return twin, runtime.committed_index

    async with asyncio.timeout(_PATIENCE_S):
        state, index = await runtime.read(take)
    await asyncio.to_thread(write_snapshot, directory, state, index=index, epoch=state.epoch)
    runtime.begin_segment()
