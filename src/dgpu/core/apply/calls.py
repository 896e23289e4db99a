"""Applies events to workers and function calls."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.events import CallReturned, WorkerChanged
from dgpu.core.state import ClusterState


def apply_returned(_state: ClusterState, _event: CallReturned) -> None:
    """For the store of results only."""


def apply_worker_changed(state: ClusterState, event: WorkerChanged) -> None:
    worker = state.workers[event.task_id]
    state.workers[event.task_id] = replace(worker, ready=event.ready, models=event.models, down=event.down)
