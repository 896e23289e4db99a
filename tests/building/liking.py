"""Which node does `placement: balanced` like best for a task? Worked out from the facts alone, node by node."""

from __future__ import annotations

from dgpu.core.model.health import SERVING, Health
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import Shape
from dgpu.core.state import ClusterState

LOAD = (300, 225, 150, 75, 0)
HEAT = (200, 150, 100, 50, 0)
REST = (0, 50, 100)


class Liking:
    """Points are tenths. Of equal points, more memory is liked; then the node whose name comes first."""

    def __init__(self, state: ClusterState, shape: Shape, *, parole: bool) -> None:
        self.state = state
        self.shape = shape
        self.parole = parole

    def best(self) -> str | None:
        return next(iter(self.in_order()), None)

    def in_order(self) -> list[str]:
        """The nodes that have room, the best one first."""
        found = [
            (-points, -memory_mb, node.id)
            for node in self.state.nodes.values()
            if (value := self.of_node(node)) is not None
            for points, memory_mb in [value]
        ]
        return [node_id for _, _, node_id in sorted(found)]

    def of_node(self, node: Node) -> tuple[int, int] | None:
        """None: it has no room."""
        shape, here = self.shape, [each for each in self.state.leases.values() if each.node_id == node.id]
        if node.draining or node.offline_since or node.unconfirmed_since:
            return None
        if len(here) >= self.state.settings.max_leases:
            return None
        labels = {**node.labels, "node": node.id}
        if any((labels.get(label) in values) is not wanted for label, wanted, values in shape.constraints):
            return None
        if shape.cpus_milli and node.cpus_milli - sum(each.cpus_milli for each in here) < shape.cpus_milli:
            return None
        if shape.ram_mb and node.ram_in_steps_mb - sum(each.ram_mb for each in here) < shape.ram_mb:
            return None
        if not shape.gpus:
            return -len(here), 0
        cards = [gpu for gpu in self.state.gpus.values() if gpu.node_id == node.id]
        values = sorted((value for gpu in cards if (value := self.of_card(gpu)) is not None), reverse=True)
        if len(values) < shape.gpus:
            return None
        chosen = values[: shape.gpus]
        return sum(points for points, _ in chosen), sum(memory_mb for _, memory_mb in chosen)

    def of_card(self, gpu: Gpu) -> tuple[int, int] | None:
        """None: it is not for this task."""
        shape, usable_mb = self.shape, self.usable_mb(gpu)
        if gpu.reserved or gpu.fault or gpu.gone or gpu.health not in SERVING:
            return None
        if gpu.health is Health.PAROLE and not self.parole:
            return None
        if shape.gpu_models and gpu.model not in shape.gpu_models:
            return None
        if usable_mb < shape.gpu_memory_mb:
            return None
        points = 400 * usable_mb // gpu.memory_mb
        points += LOAD[gpu.load_band] + HEAT[gpu.heat_band] + REST[gpu.rest_band]
        if shape.model and shape.model in gpu.warm:
            points += 1_000
        elif shape.model and len(gpu.warm) < self.state.settings.max_models_per_gpu:
            points += 500
        others = [each for each in self.state.leases.values() if gpu.id in each.gpu_ids]
        if not others:
            return points, usable_mb
        if shape.share_milli == 1_000 or any(each.share_milli == 1_000 for each in others):
            return None
        left = self.left_milli(gpu)
        if left < max(shape.share_milli, -(-shape.gpu_memory_mb * 1_000 // usable_mb)):
            return None
        return points - 400 * (1_000 - left) // 1_000 + 500, usable_mb

    def left_milli(self, gpu: Gpu) -> int:
        """Of a card that is shared: by share and by memory, whichever is less."""
        others = [each for each in self.state.leases.values() if gpu.id in each.gpu_ids]
        usable_mb = self.usable_mb(gpu)
        left_mb = usable_mb - gpu.over_mb - sum(each.gpu_memory_mb for each in others)
        return max(
            0, min(1_000 - sum(each.share_milli for each in others), left_mb * 1_000 // max(1, usable_mb))
        )

    def usable_mb(self, gpu: Gpu) -> int:
        return max(0, gpu.memory_in_steps_mb - self.state.settings.memory_margin_mb - gpu.foreign_mb)
