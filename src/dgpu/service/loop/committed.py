"""Reads the last committed state from the files, while a group that the state already holds is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalError
from dgpu.journal.journal import Journal
from dgpu.service.loop.quorum import Quorum
from dgpu.service.machine.inputs import Loaded

_NONE = -1  # no group has this index: the machine asks again if reads still wait

_log = structlog.get_logger("dgpu.scheduler")


async def load_committed(journal: Journal, quorum: Quorum, index: int, put: Callable[[Loaded], None]) -> None:
    put(await _load(journal, quorum, index))


async def _load(journal: Journal, quorum: Quorum, index: int) -> Loaded:
    try:
        state = await asyncio.to_thread(journal.committed_state)
    except (JournalError, OSError) as error:  # the group is being written: the stall is over
        _log.info("committed_state_not_read", reason=str(error))
        return Loaded(index=_NONE, state=ClusterState())
    return Loaded(index=index if quorum.last_index == index else _NONE, state=state)
