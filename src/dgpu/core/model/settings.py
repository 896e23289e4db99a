"""Settings that decisions depend on. They are journaled, so that a replay decides by the same rules."""

from __future__ import annotations

import enum

import msgspec

from dgpu.core.model.health import HealthRules
from dgpu.core.model.quota import Quota
from dgpu.core.model.tenant import Tenant


class Placement(enum.StrEnum):
    BALANCED = "balanced"  # loaded models, free memory, low load: see rules.score
    PACK = "pack"  # keeps nodes whole and fragments low: see rules.fragment


class EstimateRules(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True
):
    """Assumptions about a task's memory until runs have shown better values."""

    base_mb: int = 4_000
    mb_per_atom_milli: int = 2_000
    atoms: int = 500
    factors_milli: dict[str, int] = msgspec.field(
        default_factory=lambda: {
            "optimization": 1_200,
            "stability": 1_500,
            "heat-capacity": 2_000,
            "bulk-modulus": 1_300,
        }
    )  # by task type; 1,000 for any other
    models_mb: dict[str, int] = {}  # base by model


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    default_timeout_ms: int = 3_600_000  # batch only; 0: none
    max_timeout_ms: int = 86_400_000  # 0: none
    retry_delay_ms: int = 1_000  # doubles per retry
    max_retry_delay_ms: int = 60_000
    keep_finished: int = 10_000  # finished tasks held in memory; older ones are in the history
    keep_finished_ms: int = 3_600_000
    idempotency_ms: int = 86_400_000
    # A bound on memory; beyond it submits are refused. Journals have the older names of this field and the next.
    max_waiting: int = msgspec.field(default=1_000_000, name="most_waiting")
    # On one node: otherwise all tasks without GPUs and cpus would start at once.
    max_leases: int = msgspec.field(default=512, name="most_leases")
    health: HealthRules = HealthRules()
    ageing_ms: int = 0  # waiting time that counts as one point of priority; 0: only priority counts
    placement: Placement = Placement.BALANCED
    memory_margin_mb: int = 2_000  # of each GPU, never promised to a task
    memory_ramp_up_ms: int = 60_000  # a shorter run shows nothing about its memory need
    max_models_per_gpu: int = 2
    estimates: EstimateRules = EstimateRules()
    quota: Quota = Quota()
    tenants: tuple[Tenant, ...] = ()
    creates_tenants: bool = False  # on first use; else unknown tenants are refused once any exists
    fair_share_half_life_ms: int = 86_400_000
    reservations: int = 0  # slots for the first tasks without room; 0: none, any task that fits runs ahead
    max_unsaved: int = 250_000  # finished tasks beyond `keep_finished` that the history does not hold yet
    max_keys: int = 1_000_000  # idempotency keys stored at once, about 170 bytes each in two processes
    max_tenant_keys: int = 500_000  # the same for each tenant
    share_enforcement: str = "report"  # or kill: for a task that exceeds its reservation on a shared GPU
    worker_idle_ms: int = 600_000  # a worker without calls is stopped after this time
    worker_turn_ms: int = 600_000  # so long a worker and a task that waits for its GPU take no turns
