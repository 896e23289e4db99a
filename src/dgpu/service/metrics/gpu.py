"""The samples of each GPU and of each node: most of the text of a scrape, so it is written in slices of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgpu.core.index.cards import usable_mb
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu, GpuStatus
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.state import ClusterState, gpu_status
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.metrics.text import Kind, Text, escaped

_MIB = 1 << 20

FAMILIES: tuple[tuple[str, Kind, str], ...] = (
    ("gpu_utilization", "gauge", "Fraction of the time in which the GPU computed, from 0 to 1."),
    ("gpu_utilization_percent", "gauge", "The same, from 0 to 100."),
    ("gpu_memory_used_bytes", "gauge", "Memory in use on the GPU, by any process."),
    ("gpu_temperature_celsius", "gauge", "Temperature of the GPU."),
    ("gpu_power_watts", "gauge", "Power that the GPU draws."),
    ("gpu_memory_foreign_bytes", "gauge", "Memory in use by processes that are not dgpu tasks."),
    ("gpu_memory_total_bytes", "gauge", "Memory of the GPU."),
    ("gpu_memory_reserved_bytes", "gauge", "Memory that is reserved for tasks on the GPU."),
    ("gpu_tasks_total", "counter", "Tasks placed on the GPU since the scheduler started."),
)


class GpuLines:
    """Labels are kept between scrapes: those of a GPU rarely change."""

    def __init__(self) -> None:
        self._labels: dict[GpuId, tuple[NodeId, int, str, str]] = {}

    def forget_removed(self, gpus: Mapping[GpuId, Gpu]) -> None:
        if len(self._labels) > len(gpus):
            self._labels = {gpu_id: kept for gpu_id, kept in self._labels.items() if gpu_id in gpus}

    def of(
        self,
        state: ClusterState,
        gpu_ids: Sequence[GpuId],
        telemetry: Mapping[GpuId, GpuSample],
        tasks: Mapping[GpuId, int],
    ) -> list[str]:
        """The lines of these GPUs, one text per family."""
        lines: tuple[list[str], ...] = tuple([] for _ in FAMILIES)
        a, b, c, d, e, f, g, h, i = lines
        for gpu_id in gpu_ids:
            gpu = state.gpus.get(gpu_id)
            if gpu is None:
                continue  # the GPU left since the scrape began
            of = self._of(gpu)
            sample = telemetry.get(gpu_id)
            if sample is not None and gpu_status(state, gpu) is not GpuStatus.OFFLINE:
                # A GPU without a sensor has no line: 0 would be a reading.
                if (percent := sample.utilization_percent) is not None:
                    a.append(f"gpu_utilization{of} {percent / 100}\n")
                    b.append(f"gpu_utilization_percent{of} {percent}\n")
                if (used_mb := sample.memory_used_mb) is not None:
                    c.append(f"gpu_memory_used_bytes{of} {used_mb * _MIB}\n")
                if sample.temperature_c is not None:
                    d.append(f"gpu_temperature_celsius{of} {sample.temperature_c}\n")
                if sample.power_w is not None:
                    e.append(f"gpu_power_watts{of} {sample.power_w}\n")
                if (foreign_mb := sample.memory_foreign_mb) is not None:
                    f.append(f"gpu_memory_foreign_bytes{of} {foreign_mb * _MIB}\n")
            g.append(f"gpu_memory_total_bytes{of} {gpu.memory_mb * _MIB}\n")
            h.append(f"gpu_memory_reserved_bytes{of} {_reserved_mb(state, gpu) * _MIB}\n")
            i.append(f"gpu_tasks_total{of} {tasks.get(gpu_id, 0)}\n")
        return ["".join(each) for each in lines]

    def _of(self, gpu: Gpu) -> str:
        kept = self._labels.get(gpu.id)
        if kept is None or kept[0] != gpu.node_id or kept[1] != gpu.index or kept[2] != gpu.model:
            text = (
                f'{{gpu_id="{escaped(gpu.id)}",model="{escaped(gpu.model)}",'
                f'node="{escaped(gpu.node_id)}",index="{gpu.index}"}}'
            )
            kept = self._labels[gpu.id] = (gpu.node_id, gpu.index, gpu.model, text)
        return kept[3]


def _reserved_mb(state: ClusterState, gpu: Gpu) -> int:
    holders = state.rooms.holders.get(gpu.id)
    if not holders:
        return 0
    leases = [state.leases[lease_id] for lease_id in holders]
    if any(lease.share_milli >= WHOLE_MILLI for lease in leases):
        return usable_mb(gpu, state.settings)
    return sum(lease.gpu_memory_mb for lease in leases)


def tell_families(text: Text, slices: Sequence[Sequence[str]]) -> None:
    """Joins the slices family by family, as the format requires."""
    for number, family in enumerate(FAMILIES):
        text.family(*family, [texts[number] for texts in slices])
