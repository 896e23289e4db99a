"""Equal states decide alike with every rule on: quota, limits and guarantees of tenants, shares, gangs, reservations.

Each pass of a random world is compared with the same pass on a state made anew from its parts.
"""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from building import cluster, finished, node, spec
from building.lockstep import execute_alike
from dgpu.core.commands import ReportStarted, RunPass, SubmitTasks
from dgpu.core.execute import execute
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Pool, TaskSpec
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

NODES: Final = 3
GPUS: Final = 4  # of each node
STEPS: Final = 60
TENANTS: Final = (
    Tenant(id=TenantId("a"), max_gpus=6, weight_milli=2_000),
    Tenant(id=TenantId("b"), max_gpus=2),
    Tenant(id=TenantId("c"), max_gpu_memory_mb=3 * 8_192, guaranteed_gpus=2),
    Tenant(id=TenantId("d"), max_running=4),
)


def world(random: Random) -> ClusterState:
    rules = Settings(
        memory_margin_mb=0,
        default_timeout_ms=0,
        max_timeout_ms=0,
        placement=random.choice(list(Placement)),
        reservations=random.choice([1, 2, 4, 8]),
        quota=Quota(mode=random.choice(list(QuotaMode)), online_ppm=random.choice([300_000, 500_000])),
        tenants=TENANTS,
    )
    return cluster(*[node(f"n{number}", gpus=GPUS, cpus=8) for number in range(NODES)], settings=rules)


def asked(random: Random) -> TaskSpec:
    kind = random.choice(["one", "one", "one", "several", "share", "gang"])
    return spec(
        random.choice([2, 3]) if kind == "several" else 1,
        nodes=2 if kind == "gang" else 1,
        share=0.5 if kind == "share" else 1,
        tenant=random.choice(TENANTS).id,
        pool=random.choice(list(Pool)),
        priority=random.choice([10, 50, 50, 80]),
        memory_mb=random.choice([0, 4_096, 8_192]),
        cpus=random.choice([0, 0, 1, 3]),
        timeout_ms=random.choice([None, None, 1_000, 60_000, 3_600_000]),
    )


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@example(11)  # beside a late reservation, time alone let a task start
@example(12)  # a plan beside a reservation that is late must be made again
@given(st.integers(0, 1 << 32))
def test_passes_do_not_depend_on_the_past(seed: int) -> None:
    random = Random(seed)
    state = world(random)
    at = state.last_at
    for _ in range(STEPS):
        at += random.choice([1, 50, 5_000, 60_000])
        for _ in range(random.randrange(4)):
            execute(state, SubmitTasks(at=at, entries=((random.randint(1, 2), asked(random)),)))
        for lease_id in random.sample(sorted(state.leases), min(len(state.leases), random.randrange(4))):
            if lease_id in state.leases and not state.leases[lease_id].started:
                execute(state, ReportStarted(at=at, lease_id=lease_id))
            if random.random() < 0.8:
                execute(state, finished(lease_id, at=at))
        for _ in range(random.randint(1, 3)):
            execute_alike(
                state, RunPass(at=at, limit=random.choice([1, 2, 1_000]), full=random.random() < 0.1)
            )
    check_invariants(state)
