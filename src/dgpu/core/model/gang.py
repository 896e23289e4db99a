"""Gangs: tasks on several nodes. One lease for each rank; all ranks are placed together and end together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome

if TYPE_CHECKING:
    from dgpu.core.events import RankEnded
MAX_NODES: Final = 1_024
_FIRST_PORT: Final = 20_000  # below the range that kernels assign automatically
_PORTS: Final = 12_000


class RankEnd(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """The end of the first rank that failed: the whole gang ends like it."""

    rank: int
    outcome: Outcome
    exit_code: int = 0
    signal: int = 0
    error: str = ""
    finished_at: int = 0
    reason: str = ""  # not empty: the attempt was lost through no fault of its own, and is not counted


class Gang(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """The gang of a running task. Its leases stand until the last rank has ended: GPUs are freed together."""

    leases: tuple[LeaseId, ...]  # by rank
    failed: RankEnd | None = None  # the other ranks are being stopped


def master_port(gang: Gang) -> int:
    """The same for all ranks, different for each gang. Another program may still use the port."""
    return _FIRST_PORT + gang.leases[0] % _PORTS


def failure_of(ended: RankEnded, rank: int) -> RankEnd | None:
    """None: the rank succeeded, and the others continue."""
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
