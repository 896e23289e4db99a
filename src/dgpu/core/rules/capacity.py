"""Whether any registered node could hold a task if the node were empty. If not, waiting cannot help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dgpu.core.model.demand import Demand
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import Constraint, in_units
from dgpu.core.rejections import NeverFits
from dgpu.core.rules.fit import holds
from dgpu.core.rules.gpu_models import suits_model
from dgpu.core.state import ClusterState

_MAX_REMEMBERED: Final = 1_024


def fits_empty(state: ClusterState, demand: Demand) -> bool:
    known = state.fits_empty.get(demand)
    if known is None:
        holding = (
            _holds(state, node, state.node_gpus(node_id), demand) for node_id, node in state.nodes.items()
        )
        known = any(holding) if demand.nodes == 1 else sum(holding) >= demand.nodes
        if len(state.fits_empty) >= _MAX_REMEMBERED:
            state.fits_empty.clear()
        state.fits_empty[demand] = known
    return known


def never_fits(state: ClusterState, demand: Demand, entry: int = 0) -> NeverFits | None:
    """Names the first requirement that rules out every node, and the best offer before it. None: some node could hold
    the task.
    """
    if fits_empty(state, demand):
        return None
    nodes = [(node, configured(state.node_gpus(node_id))) for node_id, node in state.nodes.items()]

    def lacks(what: str, requested: int | str, largest: int | str) -> NeverFits:
        return NeverFits(entry=entry, lacks=what, requested=requested, largest=largest)

    if demand.nodes > 1 and fits_empty(state, demand.but(nodes=1)):
        number = sum(_holds(state, node, state.node_gpus(node.id), demand) for node, _ in nodes)
        return lacks("nodes", demand.nodes, number)

    if demand.constraints:
        nodes = [(node, gpus) for node, gpus in nodes if holds(labels_of(node), demand.constraints)]
        if not nodes:
            return lacks("constraints", in_words(demand.constraints), len(state.nodes))
    most = max((len(gpus) for _, gpus in nodes), default=0)
    if most < demand.gpus:
        return lacks("gpus", demand.gpus, most)
    if demand.gpu_models and demand.gpus:
        models = sorted({gpu.model for _, gpus in nodes for gpu in gpus})
        nodes = [
            (node, [gpu for gpu in gpus if suits_model(demand.gpu_models, gpu.model)]) for node, gpus in nodes
        ]
        most = max(len(gpus) for _, gpus in nodes)
        if most == 0:
            return lacks("gpu_model", ", ".join(demand.gpu_models), ", ".join(models))
        if most < demand.gpus:
            return lacks("gpus", demand.gpus, most)
    if demand.gpus:
        nodes = [(node, gpus) for node, gpus in nodes if len(gpus) >= demand.gpus]
        best = max(weakest_of_best(state, gpus, demand.gpus) for _, gpus in nodes)
        if best < demand.gpu_memory_mb:
            return lacks("gpu_memory_mb", demand.gpu_memory_mb, best)
        nodes = [
            (node, gpus)
            for node, gpus in nodes
            if weakest_of_best(state, gpus, demand.gpus) >= demand.gpu_memory_mb
        ]
    most = max(node.cpus_milli for node, _ in nodes)
    if most < demand.cpus_milli:
        return lacks("cpus", in_units(demand.cpus_milli), in_units(most))
    most = max(node.ram_mb for node, _ in nodes if node.cpus_milli >= demand.cpus_milli)
    return lacks("ram_mb", demand.ram_mb, most)


def configured(gpus: Iterable[Gpu]) -> list[Gpu]:
    """The GPUs that the node offers when all are healthy and no task runs."""
    return [gpu for gpu in gpus if not gpu.reserved and not gpu.gone]


def weakest_of_best(state: ClusterState, gpus: Sequence[Gpu], count: int) -> int:
    """The memory that the weakest GPU can promise if the `count` largest are taken."""
    return sorted((promised_mb(state, gpu) for gpu in gpus), reverse=True)[count - 1]


def promised_mb(state: ClusterState, gpu: Gpu) -> int:
    """The memory that an idle GPU may promise."""
    return max(0, gpu.memory_in_steps_mb - state.settings.memory_margin_mb)


def labels_of(node: Node) -> dict[str, str]:
    return {**node.labels, "node": node.id}


def in_words(constraints: tuple[Constraint, ...]) -> str:
    return ", ".join(
        f"{label}{'=' if wanted else '!='}{'|'.join(values)}" for label, wanted, values in constraints
    )


def suits(state: ClusterState, gpu: Gpu, demand: Demand) -> bool:
    """Whether the model fits, and the memory while no other task is on the GPU."""
    if demand.gpu_models and not suits_model(demand.gpu_models, gpu.model):
        return False
    return not demand.gpu_memory_mb or promised_mb(state, gpu) >= demand.gpu_memory_mb


def could_host(node: Node, demand: Demand) -> bool:
    """Whether the cpus and ram of the empty node suffice."""
    return node.cpus_milli >= demand.cpus_milli and node.ram_in_steps_mb >= demand.ram_mb


def _holds(state: ClusterState, node: Node, gpus: Sequence[Gpu], demand: Demand) -> bool:
    if not could_host(node, demand):
        return False
    if demand.constraints and not holds(labels_of(node), demand.constraints):
        return False
    return sum(suits(state, gpu, demand) for gpu in configured(gpus)) >= demand.gpus
