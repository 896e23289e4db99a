"""A cluster with every rule of the scheduler on, for the benchmarks of the core.

Both pools have a quota, every tenant has limits, and some of them bind: tenant-1 may hold no more than it does, and
tenant-2 falls short of what it is guaranteed whenever a task of it ends. Tasks ask for memory, cpus and ram. Some share
their GPU, some want a model that is loaded on every fourth card, some go over two nodes. Only ageing, which is off by
default, is off here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dgpu.core.commands import BeginEpoch, ObserveCondition, RunPass, SubmitTasks
from dgpu.core.execute import execute
from dgpu.core.model.ids import GpuId, TenantId
from dgpu.core.model.quota import Quota, QuotaMode, split
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Pool, Shape, TaskDetail, TaskSpec
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

TENANTS = 5
SHAPES = 50


def settings(gpus: int, placement: Placement, reservations: int) -> Settings:
    """Limits follow the number of GPUs, so that they bind alike in clusters of any size."""
    limits: dict[int, dict[str, int]] = {
        0: {"weight_milli": 2_000, "max_gpus": gpus},
        1: {"max_gpus": gpus // 8},
        2: {"guaranteed_gpus": gpus // 4, "max_gpu_memory_mb": gpus * 40_960},
        3: {"weight_milli": 3_000, "max_running": gpus},
        4: {"weight_milli": 500, "gpu_hours_milli": 10**12},
    }
    return Settings(
        max_waiting=10_000_000,
        placement=placement,
        reservations=reservations,
        quota=Quota(mode=QuotaMode.STRICT),
        tenants=tuple(Tenant(id=tenant_id(number), **limits[number]) for number in range(TENANTS)),
    )


def tenant_id(number: int) -> TenantId:
    return TenantId(f"tenant-{number}")


def full_cluster(
    nodes: int,
    placement: Placement,
    register: Callable[[ClusterState, int], None],
    waiting: int = 10_000,
    reservations: int = 8,
) -> ClusterState:
    """`register` adds so many nodes, of 8 GPUs each."""
    state = ClusterState()
    execute(state, BeginEpoch(at=1, settings=settings(8 * nodes, placement, reservations)))
    register(state, nodes)
    load_models(state)
    fill(state, 8 * nodes)
    for number in range(0, waiting, 1_000):
        entries = tuple((1, spec(each % SHAPES, number + each)) for each in range(1_000))
        execute(state, SubmitTasks(at=5, entries=entries))
    return state


def load_models(state: ClusterState) -> None:
    for number, gpu_id in enumerate(sorted(state.gpus)):
        if number % 4 == 0:
            execute(state, ObserveCondition(at=2, gpu_id=GpuId(gpu_id), warm=("uma",)))


def fill(state: ClusterState, gpus: int) -> None:
    """Each pool holds its quota, in tasks of one GPU; the tenants hold what their limits say, the others the rest."""
    for pool in Pool:
        of_pool = split(gpus, state.quota.online_ppm).milli(pool) // 1_000
        counts = {1: of_pool // 8, 2: of_pool // 4, 3: of_pool // 4, 4: of_pool // 8}
        counts[0] = of_pool - sum(counts.values())
        entries = tuple(
            (count, _plain(number, pool)) for number, total in counts.items() for count in _portions(total)
        )
        for entry in entries:
            execute(state, SubmitTasks(at=3, entries=(entry,)))
    while execute(state, RunPass(at=4, limit=10_000)):
        pass
    if len(state.leases) != gpus:
        raise AssertionError(f"{len(state.leases)} of {gpus} GPUs are busy")


def spec(kind: int, number: int) -> TaskSpec:
    """50 shapes: 5 tenants, 5 priorities, 3 in 10 online; of each 10 two share, one wants several GPUs or nodes."""
    of_ten = kind % 10
    shape = Shape(
        tenant_id=tenant_id(kind % TENANTS),
        pool=Pool.ONLINE if of_ten in {0, 3, 7} else Pool.BATCH,
        priority=10 + 10 * (kind // 10),
        gpus=2 + kind // 10 if of_ten == 9 and kind < SHAPES - 10 else 1,
        nodes=2 if kind == SHAPES - 1 else 1,
        gpu_memory_mb=16_384 * (1 + kind % 2),
        cpus_milli=1_000 * (kind % 3),
        ram_mb=8_192 * (kind % 2),
        share_milli=500 if of_ten in {2, 3} else 1_000,
        model="uma" if of_ten in {4, 7} else "",
    )
    detail = TaskDetail(name=f"train-{number}", command=("python", "train.py", f"--seed={number}"))
    return TaskSpec(shape=shape, detail=msgspec.json.encode(detail))


def _plain(number: int, pool: Pool) -> TaskSpec:
    shape = Shape(tenant_id=tenant_id(number), pool=pool, priority=90, gpus=1, gpu_memory_mb=16_384)
    return TaskSpec(shape=shape, detail=b'{"command":"true"}')


def _portions(total: int) -> list[int]:
    """One submit takes so many at most."""
    return [min(10_000, total - start) for start in range(0, total, 10_000)]
