"""The two pools' parts of the cluster: how many GPUs each may use, and the rules for borrowing between them."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

from dgpu.core.model.task import WHOLE_MILLI, Pool

MILLION: Final = 1_000_000

OTHER_POOL: Final = {Pool.ONLINE: Pool.BATCH, Pool.BATCH: Pool.ONLINE}


class QuotaMode(enum.StrEnum):
    STRICT = "strict"  # no grant takes a pool over its quota
    BORROW = "borrow"  # quota that the other pool does not need may be used


class Reclaim(enum.StrEnum):
    """How a pool gets back GPUs that the other pool has borrowed."""

    WAIT = "wait"  # it waits until borrowed tasks have ended
    STOP = "stop"  # borrowed batch tasks are asked to stop, and requeued


class Quota(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Parts are in millionths, so no float affects a decision. The default here leaves no GPU idle; the configuration
    is strict.
    """

    online_ppm: int = 700_000
    mode: QuotaMode = QuotaMode.BORROW
    reclaim: Reclaim = Reclaim.WAIT


class Split(NamedTuple):
    """Whole GPUs; the parts add up to all GPUs."""

    online: int
    batch: int

    def milli(self, pool: Pool) -> int:
        return WHOLE_MILLI * (self.online if pool is Pool.ONLINE else self.batch)


def split(gpus: int, online_ppm: int) -> Split:
    """By largest remainder: the remaining GPU goes to the pool with the larger remainder, on a tie to online."""
    online, online_rest = divmod(gpus * online_ppm, MILLION)
    batch_rest = gpus * (MILLION - online_ppm) % MILLION
    if online_rest and online_rest >= batch_rest:
        online += 1
    return Split(online, gpus - online)
