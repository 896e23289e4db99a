"""A tenant: the owner of tasks, and the limits on its use of the cluster."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import Pool

MAX_TENANTS: Final = 10_000
WEIGHT_MILLI: Final = 1_000  # the weight 1
BOTH_POOLS: Final = (Pool.ONLINE, Pool.BATCH)


class Tenant(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """None: no limit of this kind."""

    id: TenantId
    max_gpus: int | None = None  # at once, both pools together
    guaranteed_gpus: int = 0  # kept for the tenant while its tasks wait for them
    weight_milli: int = WEIGHT_MILLI  # of its fair share
    max_running: int | None = None  # tasks
    max_waiting: int | None = None
    max_gpu_memory_mb: int | None = None  # sum of the demands of its running tasks
    max_priority: int | None = None
    pools: tuple[Pool, ...] = BOTH_POOLS
    gpu_hours_milli: int | None = None  # thousandths of GPU-hours in a calendar month, UTC

    @property
    def limits_grants(self) -> bool:
        """Whether limits besides guarantee and share decide when its tasks may start."""
        limits = (self.max_gpus, self.max_running, self.max_gpu_memory_mb, self.gpu_hours_milli)
        return any(limit is not None for limit in limits)
