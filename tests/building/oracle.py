"""May a task start, as far as pools and tenants go? Worked out from the facts alone, by the plainest of means."""

from __future__ import annotations

from fractions import Fraction

from dgpu.core.apply.table import apply
from dgpu.core.events import TasksCancelled
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.quota import QuotaMode
from dgpu.core.model.task import Pool, Shape, Task, TaskStatus
from dgpu.core.state import ClusterState, gpu_status

COUNTED = {GpuStatus.IDLE, GpuStatus.BUSY, GpuStatus.DRAINING, GpuStatus.UNCONFIRMED}


class Oracle:
    def __init__(self, state: ClusterState, at: int) -> None:
        self.state = state
        self.at = at
        status = {gpu.id: gpu_status(state, gpu) for gpu in state.gpus.values()}
        self.idle_milli = 1_000 * sum(each is GpuStatus.IDLE for each in status.values())
        self.quota = self._split(sum(each in COUNTED for each in status.values()))
        self.used = dict.fromkeys(Pool, 0)
        self.held: dict[str, int] = {}
        self.held_mb: dict[str, int] = {}
        self.running: dict[str, set[int]] = {}
        for lease in state.leases.values():
            shape = self.shape(state.tasks[lease.task_id])
            self.running.setdefault(shape.tenant_id, set()).add(lease.task_id)
            for gpu_id in lease.gpu_ids:
                if status[gpu_id] is GpuStatus.BUSY:
                    self.used[shape.pool] += lease.share_milli
                self.held[shape.tenant_id] = self.held.get(shape.tenant_id, 0) + lease.share_milli
                self.held_mb[shape.tenant_id] = self.held_mb.get(shape.tenant_id, 0) + lease.gpu_memory_mb

    def shape(self, task: Task) -> Shape:
        return self.state.shapes[task.shape_id]

    def ready(self) -> list[Task]:
        return [task for task in self.state.tasks.values() if self.is_ready(task)]

    def is_ready(self, task: Task) -> bool:
        if task.status is not TaskStatus.PENDING or task.eligible_at > self.at or self.state.is_apart(task):
            return False
        shape = self.shape(task)
        if not shape.array_id:
            return True
        array = [each for each in self.state.tasks.values() if each.array_id == shape.array_id]
        return sum(each.status is TaskStatus.RUNNING for each in array) < shape.array_limit

    def admits(self, task: Task, milli: int | None = None, memory_mb: int | None = None) -> bool:
        """Without numbers: by the least that it takes."""
        shape = self.shape(task)
        milli = self.milli(shape) if milli is None else milli
        memory_mb = self.memory_mb(shape) if memory_mb is None else memory_mb
        return (
            self.in_quota(shape.pool, milli)
            and self.in_limits(shape, milli, memory_mb)
            and not self.is_kept(shape, milli)
        )

    @staticmethod
    def milli(shape: Shape) -> int:
        return shape.gpus * shape.nodes * shape.share_milli

    @staticmethod
    def memory_mb(shape: Shape) -> int:
        return shape.gpus * shape.nodes * shape.gpu_memory_mb

    def in_quota(self, pool: Pool, milli: int) -> bool:
        own = self.quota[pool] - self.used[pool]
        if not milli or milli <= own:
            return True
        if self.state.quota.mode is QuotaMode.STRICT:
            return False
        (other,) = set(Pool) - {pool}
        spare = self.quota[other] - self.used[other]
        needed = self.needed(other, spare)
        return not needed or milli <= own + spare - needed

    def needed(self, pool: Pool, spare: int) -> int:
        wanted = 0
        for task in self.ready():
            shape = self.shape(task)
            milli = self.milli(shape)
            if (
                shape.pool is pool
                and 0 < milli <= spare
                and self.in_limits(shape, milli, self.memory_mb(shape))
            ):
                wanted += milli
        return min(spare, wanted) if spare > 0 else 0

    def in_limits(self, shape: Shape, milli: int, memory_mb: int) -> bool:
        name = shape.tenant_id
        tenant = self.state.tenants.get(name)
        if tenant is None:
            return True
        if tenant.max_running is not None and len(self.running.get(name, ())) >= tenant.max_running:
            return False
        if not milli:
            return True
        if tenant.max_gpus is not None and self.held.get(name, 0) + milli > 1_000 * tenant.max_gpus:
            return False
        max_mb = tenant.max_gpu_memory_mb
        if max_mb is not None and self.held_mb.get(name, 0) + memory_mb > max_mb:
            return False
        usage = self.state.usages.get(name)
        return (
            tenant.gpu_hours_milli is None
            or usage is None
            or usage.of_month < tenant.gpu_hours_milli * 3_600_000
        )

    def is_kept(self, shape: Shape, milli: int) -> bool:
        own = self.state.tenants.get(shape.tenant_id)
        short = 1_000 * own.guaranteed_gpus - self.held.get(own.id, 0) if own is not None else 0
        if not milli or milli <= short:
            return False
        kept = sum(self.kept(name) for name in self.state.tenants if name != shape.tenant_id)
        return kept > 0 and self.idle_milli - -(-milli // 1_000) * 1_000 < kept

    def kept(self, name: str) -> int:
        short = 1_000 * self.state.tenants[name].guaranteed_gpus - self.held.get(name, 0)
        wanted = 0
        for task in self.ready():
            shape = self.shape(task)
            milli = self.milli(shape)
            if (
                shape.tenant_id == name
                and 0 < milli <= short
                and self.in_quota(shape.pool, milli)
                and self.in_limits(shape, milli, self.memory_mb(shape))
            ):
                wanted += milli
        return max(0, min(short, wanted))

    def _split(self, gpus: int) -> dict[Pool, int]:
        exact = {Pool.ONLINE: Fraction(gpus * self.state.quota.online_ppm, 1_000_000)}
        exact[Pool.BATCH] = gpus - exact[Pool.ONLINE]
        parts = {pool: int(part) for pool, part in exact.items()}
        for pool in sorted(Pool, key=lambda each: (parts[each] - exact[each], each is Pool.BATCH)):
            parts[pool] += sum(parts.values()) < gpus
        return {pool: 1_000 * part for pool, part in parts.items()}


def without_broken(state: ClusterState, at: int) -> ClusterState:
    """A pass first cancels tasks with a broken dependency. Tasks that wait for one of them may become ready by it."""
    fork = state.fork()
    if broken := tuple(sorted(fork.dependents.broken)):
        apply(fork, TasksCancelled(at=at, task_ids=broken, reason="dependency_failed"))
    return fork
