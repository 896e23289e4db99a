"""The use and the limit of each pool. Derived from the state, never journaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgpu.core.model.task import Pool

if TYPE_CHECKING:
    from dgpu.core.index.line import Line


class PoolUse:
    """Tasks without GPUs belong to no pool: no quota applies to them."""

    __slots__ = ("limit_milli", "other", "pool", "ready", "used_milli")

    def __init__(self, pool: Pool | None) -> None:
        self.pool = pool
        self.other: PoolUse | None = None  # the other pool
        self.used_milli = 0  # held by leases
        self.limit_milli = 0  # the pool's quota, plus its use of GPUs that do not count
        self.ready: dict[Line, None] = {}  # lines with a task that may be placed


def new_pools() -> dict[Pool | None, PoolUse]:
    pools: dict[Pool | None, PoolUse] = {pool: PoolUse(pool) for pool in (None, *Pool)}
    online, batch = pools[Pool.ONLINE], pools[Pool.BATCH]
    online.other, batch.other = batch, online
    return pools
