"""Applies events to the facts that placement has learned: condition of GPUs, typical tasks, memory estimates."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.apply.health import change_gpu
from dgpu.core.apply.task import reshape
from dgpu.core.events import ConditionChanged, DemandChanged, EstimateLearned, TypicalChanged
from dgpu.core.rules.estimate import evicted
from dgpu.core.state import ClusterState


def apply_condition(state: ClusterState, event: ConditionChanged) -> None:
    change_gpu(
        state,
        event.gpu_id,
        over_mb=event.over_mb,
        load_band=event.load_band,
        heat_band=event.heat_band,
        rest_band=event.rest_band,
        warm=event.warm,
    )


def apply_typical(state: ClusterState, event: TypicalChanged) -> None:
    state.typical = event.typical
    state.rooms.learn(event.typical)


def apply_learned(state: ClusterState, event: EstimateLearned) -> None:
    leaving = evicted(state.estimates, event.key)
    if leaving is not None:
        del state.estimates[leaving]
    state.estimates[event.key] = event.estimate


def apply_demand(state: ClusterState, event: DemandChanged) -> None:
    task = state.tasks[event.task_id]
    larger = replace(state.shapes[task.shape_id], gpu_memory_mb=event.gpu_memory_mb)
    state.tasks[task.id] = replace(task, grown=True)
    reshape(state, task.id, larger)
