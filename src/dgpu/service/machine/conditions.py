"""Turns samples into steps and bands of GPUs for placement, and sends them to the core when they change.

Raw samples never reach the core. Bands have slack, so that a value at an edge does not fill the journal. A GPU is
reported at most every few seconds. A GPU held by an exclusive task is not reported, because no other task can use it;
for a GPU held by a worker, only its loaded models are.
"""

from __future__ import annotations

from dgpu.core.commands import ObserveCondition
from dgpu.core.model.ids import GpuId, LeaseId, task_name
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Placement
from dgpu.core.model.task import MEMORY_STEP_MB, WHOLE_MILLI
from dgpu.core.rules.score import HEAT_EDGES_C, LOAD_EDGES_PERCENT, REST_EDGES_MS, band
from dgpu.core.state import ClusterState
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.outputs import Remark

_EVERY_MS = 5_000
_LOAD_SLACK_PERCENT = 5
_HEAT_SLACK_C = 2


class Conditions:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._said_at: dict[GpuId, int] = {}
        self._free_since: dict[GpuId, int] = {}
        self._outgrown: dict[GpuId, frozenset[LeaseId]] = {}  # already reported

    def look(self, gpu: Gpu, sample: GpuSample, now: int) -> list[ObserveCondition | Remark]:
        leases = self._state.gpu_leases(gpu.id)
        if leases and leases[0].share_milli == WHOLE_MILLI:
            self._free_since.pop(gpu.id, None)
            return self._of_worker(gpu, leases[0], sample, now)
        effects: list[ObserveCondition | Remark] = []
        over_mb = 0
        if leases:
            self._free_since.pop(gpu.id, None)
            over_mb = self._over_mb(gpu, leases, sample, effects)
        elif gpu.id in self._outgrown:
            del self._outgrown[gpu.id]
        observed = self._observed(gpu, sample, over_mb, idle=not leases, now=now)
        known = (gpu.over_mb, gpu.load_band, gpu.heat_band, gpu.rest_band, gpu.warm)
        told = (observed.over_mb, observed.load_band, observed.heat_band, observed.rest_band, observed.warm)
        if told != known and (over_mb > gpu.over_mb or now - self._said_at.get(gpu.id, 0) >= _EVERY_MS):
            self._said_at[gpu.id] = now
            effects.append(observed)
        return effects

    def _of_worker(
        self, gpu: Gpu, lease: Lease, sample: GpuSample, now: int
    ) -> list[ObserveCondition | Remark]:
        """The models that a worker keeps loaded. Nothing else matters while it holds the GPU."""
        is_known = sample.loaded_models == gpu.warm or lease.task_id not in self._state.workers
        if is_known or now - self._said_at.get(gpu.id, 0) < _EVERY_MS:
            return []
        self._said_at[gpu.id] = now
        return [
            ObserveCondition(
                gpu_id=gpu.id,
                over_mb=gpu.over_mb,
                load_band=gpu.load_band,
                heat_band=gpu.heat_band,
                rest_band=gpu.rest_band,
                warm=sample.loaded_models,
            )
        ]

    def forget(self, gpu_id: GpuId) -> None:
        for known in (self._said_at, self._free_since, self._outgrown):
            known.pop(gpu_id, None)

    def _observed(
        self, gpu: Gpu, sample: GpuSample, over_mb: int, *, idle: bool, now: int
    ) -> ObserveCondition:
        if self._state.settings.placement is not Placement.BALANCED:
            return ObserveCondition(gpu_id=gpu.id, over_mb=over_mb, warm=sample.loaded_models)
        rested_ms = now - self._free_since.setdefault(gpu.id, now) if idle else 0
        return ObserveCondition(
            gpu_id=gpu.id,
            over_mb=over_mb,
            load_band=_held(
                gpu.load_band, sample.utilization_percent or 0, LOAD_EDGES_PERCENT, _LOAD_SLACK_PERCENT
            ),
            heat_band=_held(gpu.heat_band, sample.temperature_c or 0, HEAT_EDGES_C, _HEAT_SLACK_C),
            rest_band=band(rested_ms, REST_EDGES_MS),
            warm=sample.loaded_models,
        )

    def _over_mb(
        self, gpu: Gpu, leases: tuple[Lease, ...], sample: GpuSample, effects: list[ObserveCondition | Remark]
    ) -> int:
        """Memory that shared tasks use beyond their reservation, in steps. Each task is reported once."""
        used = dict(sample.leases_mb)
        over = {lease.id: used.get(lease.id, 0) - lease.gpu_memory_mb for lease in leases}
        outgrown = frozenset(lease_id for lease_id, memory_mb in over.items() if memory_mb > 0)
        for lease in leases:
            if lease.id in outgrown - self._outgrown.get(gpu.id, frozenset()):
                facts: dict[str, str | int] = {
                    "task": task_name(lease.task_id),
                    "node": gpu.node_id,
                    "gpu": gpu.id,
                    "reserved_mb": lease.gpu_memory_mb,
                    "used_mb": used[lease.id],
                }
                effects.append(Remark(event="memory_outgrown", facts=facts))
        self._outgrown[gpu.id] = outgrown
        beyond_mb = sum(memory_mb for memory_mb in over.values() if memory_mb > 0)
        return -(-beyond_mb // MEMORY_STEP_MB) * MEMORY_STEP_MB


def _held(known: int, value: int, edges: tuple[int, ...], slack: int) -> int:
    """A value leaves a band downwards only when it is clearly below the edge."""
    now = band(value, edges)
    return min(known, band(value + slack, edges)) if now < known else now
