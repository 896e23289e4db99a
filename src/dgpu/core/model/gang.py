"""Gangs: tasks over several nodes. One lease for each rank, placed together, ended together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome

if TYPE_CHECKING:
    from dgpu.core.events import RankEnded
MAX_NODES: Final = 1_024
_FIRST_PORT: Final = 20_000  # below the range that kernels hand out by themselves
_PORTS: Final = 12_000


class RankEnd(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """How the first rank ended that did not end well: the whole gang ends like it."""

    rank: int
    outcome: Outcome
    exit_code: int = 0
    signal: int = 0
    error: str = ""
    finished_at: int = 0
    reason: str = ""  # not empty: the attempt is gone through no fault of its own, and not counted


class Gang(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """Of a task that runs. Its leases stand until the last rank has ended: GPUs are freed together."""

    leases: tuple[LeaseId, ...]  # by rank
    failed: RankEnd | None = None  # the others are being stopped


def master_port(gang: Gang) -> int:
    """The same for all ranks, another one for each gang. Nobody can promise that no other program uses it."""
    return _FIRST_PORT + gang.leases[0] % _PORTS


def failure_of(ended: RankEnded, rank: int) -> RankEnd | None:
    """None: it ended well, and the others go on."""
    if ended.outcome is Outcome.EXITED and ended.exit_code == 0:
        return None
    return RankEnd(
        rank=rank,
        outcome=ended.outcome,
        exit_code=ended.exit_code,
        signal=ended.signal,
        error=ended.error,
        finished_at=ended.finished_at,
        reason=ended.reason,
    )
