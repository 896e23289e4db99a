"""Committed events as log lines. Made for thousands a second: single lines up to a rate, then one line for many."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from dgpu.core.events import (
    DemandChanged,
    EpochBegan,
    EstimateLearned,
    Event,
    GangPlaced,
    GpuBlamed,
    GpuHealthChanged,
    InventoryChanged,
    NodeDraining,
    NodeLost,
    NodeRegistered,
    NodeRemoved,
    NodeResumed,
    ObservationChanged,
    PriorityChanged,
    QuotaChanged,
    TaskCancelRequested,
    TaskFinished,
    TaskPlaced,
    TaskRequeued,
    TasksCancelled,
    TasksHeld,
    TasksReleased,
    TasksSubmitted,
    TaskStopRequested,
    TenantRemoved,
    TenantSet,
)
from dgpu.core.model.health import SEVERITIES
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.quota import MILLION
from dgpu.core.model.task import TaskStatus

_LINES_PER_SECOND = 50  # of one name

_Line = tuple[int, str, int, dict[str, Any]]  # level, name, how many, fields


class Committed(Protocol):
    @property
    def events(self) -> Sequence[Event]: ...


class EventLog:
    """`on_committed` is to be subscribed to the runtime, `flush` called now and then and at the end."""

    def __init__(
        self,
        *,
        logger: Any = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._std = logging.getLogger("dgpu.events")
        self._logger = logger if logger is not None else structlog.get_logger("dgpu.events")
        self._clock = clock
        self._call_later = call_later
        self._second = clock()
        self._lines: dict[str, int] = {}
        self._held: dict[str, tuple[int, int]] = {}  # name → level and number of what was not told singly

    def on_committed(self, group: Committed) -> None:
        if not self._std.isEnabledFor(logging.WARNING):
            return
        told_all = self._std.isEnabledFor(logging.INFO)
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self.flush()
        for event in group.events:
            if not told_all and type(event) in _NEVER_A_WARNING:
                continue
            tell = _LINES.get(type(event))
            line = None if tell is None else tell(event)
            if line is not None and (told_all or line[0] >= logging.WARNING):
                self._tell(line)

    def flush(self) -> None:
        self._lines.clear()
        held, self._held = self._held, {}
        for name, (level, count) in held.items():
            self._logger.log(level, name, count=count, summary="more in the same second")

    def _tell(self, line: _Line) -> None:
        level, name, count, fields = line
        told = self._lines.get(name, 0)
        if told < _LINES_PER_SECOND:
            self._lines[name] = told + 1
            self._logger.log(level, name, **fields)
            return
        if not self._held and self._call_later is not None:
            self._call_later(1.0, self.flush)
        self._held[name] = (level, self._held.get(name, (0, 0))[1] + count)


def _submitted(event: TasksSubmitted) -> _Line:
    count = sum(number for number, _ in event.entries)
    if count == 1:
        shape = event.entries[0][1].shape
        fields: dict[str, Any] = {
            "task": task_name(event.first_id),
            "tenant": shape.tenant_id,
            "pool": shape.pool.value,
            "priority": shape.priority,
            "gpus": shape.gpus,
        }
    else:
        last = task_name(TaskId(event.first_id + count - 1))
        fields = {"count": count, "first": task_name(event.first_id), "last": last}
    return logging.INFO, "task_submitted", count, fields


def _placed(event: TaskPlaced) -> _Line:
    fields = {
        "task": task_name(event.task_id),
        "node": event.node_id,
        "gpus": len(event.gpu_ids),
        "attempt": event.attempt,
        "lease": event.lease_id,
    }
    return logging.INFO, "task_scheduled", 1, fields


def _gang_placed(event: GangPlaced) -> _Line:
    fields = {
        "task": task_name(event.task_id),
        "nodes": [rank.node_id for rank in event.ranks],
        "gpus": sum(len(rank.gpu_ids) for rank in event.ranks),
        "attempt": event.ranks[0].attempt,
        "lease": event.ranks[0].lease_id,
    }
    return logging.INFO, "task_scheduled", 1, fields


def _finished(event: TaskFinished) -> _Line:
    fields: dict[str, Any] = {"task": task_name(event.task_id), "status": event.status.value}
    if event.status is TaskStatus.FAILED:
        fields |= {"exit_code": event.exit_code, "reason": event.reason, "error": event.error}
        return logging.WARNING, "task_failed", 1, fields
    return logging.INFO, "task_finished", 1, fields


def _cancelled(event: TasksCancelled) -> _Line | None:
    if not event.task_ids:
        return None
    count = len(event.task_ids)
    fields = {"status": "cancelled", "count": count, "first": task_name(event.task_ids[0])}
    if event.reason != "cancelled":
        return logging.WARNING, "task_failed", count, {**fields, "reason": event.reason}
    return logging.INFO, "task_finished", count, fields


def _requeued(event: TaskRequeued) -> _Line:
    fields = {
        "task": task_name(event.task_id),
        "reason": event.reason,
        "counted": event.counted,
        "error": event.error,
    }
    return logging.WARNING, "task_pending", 1, fields


def _registered(event: NodeRegistered) -> _Line:
    fields = {"node": event.node.id, "gpus": len(event.gpus), "address": event.node.address}
    return logging.INFO, "agent_registered", 1, fields


def _lost(event: NodeLost) -> _Line:
    return logging.WARNING, "agent_offline", 1, {"node": event.node_id, "reason": event.reason}


def _observed(event: ObservationChanged) -> _Line | None:
    if not event.fault:
        return None
    return logging.WARNING, "gpu_fault", 1, {"gpu": event.gpu_id, "fault": event.fault}


def _health(event: GpuHealthChanged) -> _Line:
    fields = {
        "gpu": event.gpu_id,
        "node": event.node_id,
        "state": event.after.value,
        "before": event.before.value,
        "cause": event.cause,
        "evidence": event.evidence,
    }
    if SEVERITIES.get(event.after) == "critical":
        return logging.CRITICAL, "gpu_error", 1, fields
    return logging.INFO, "gpu_health", 1, fields


def _quota(event: QuotaChanged) -> _Line:
    quota = event.quota
    fields = {
        "online_percent": quota.online_ppm / MILLION,
        "mode": quota.mode.value,
        "reclaim": quota.reclaim.value,
    }
    return logging.INFO, "quota_updated", 1, fields


def _stopped(event: TaskStopRequested) -> _Line:
    fields = {"task": task_name(event.task_id), "reason": event.reason, "error": event.error}
    return logging.WARNING, "task_stop_requested", 1, fields


def _blamed(event: GpuBlamed) -> _Line:
    fields = {"gpu": event.gpu_id, "node": event.node_id, "task": task_name(event.blame.task_id)}
    return logging.WARNING, "gpu_blamed", 1, fields


def _many(name: str, event: TasksHeld | TasksReleased) -> _Line:
    count = len(event.task_ids)
    return logging.INFO, name, count, {"count": count, "first": task_name(event.task_ids[0])}


def _priority(event: PriorityChanged) -> _Line:
    count = len(event.tasks)
    fields = {"count": count, "first": task_name(event.tasks[0][0]), "priority": event.priority}
    return logging.INFO, "task_priority_changed", count, fields


def _learned(event: EstimateLearned) -> _Line:
    known = event.estimate
    fields = {"tenant": known.tenant_id, "model": known.model, "base_mb": known.base_mb, "ooms": known.ooms}
    return logging.INFO, "memory_learned", 1, fields


def _demand(event: DemandChanged) -> _Line:
    fields = {"task": task_name(event.task_id), "gpu_memory_mb": event.gpu_memory_mb}
    return logging.INFO, "task_demand_changed", 1, {**fields, "cause": "out_of_memory"}


_LINES: dict[type[Event], Callable[[Any], _Line | None]] = {
    TasksSubmitted: _submitted,
    TaskPlaced: _placed,
    GangPlaced: _gang_placed,
    TaskFinished: _finished,
    TasksCancelled: _cancelled,
    TaskRequeued: _requeued,
    NodeRegistered: _registered,
    NodeLost: _lost,
    ObservationChanged: _observed,
    GpuHealthChanged: _health,
    NodeDraining: lambda event: (
        logging.INFO,
        "node_draining",
        1,
        {"node": event.node_id, "reason": event.reason},
    ),
    NodeResumed: lambda event: (logging.INFO, "node_resumed", 1, {"node": event.node_id}),
    NodeRemoved: lambda event: (logging.INFO, "node_removed", 1, {"node": event.node_id}),
    QuotaChanged: _quota,
    TenantSet: lambda event: (logging.INFO, "tenant_set", 1, {"tenant": event.tenant.id}),
    TenantRemoved: lambda event: (logging.INFO, "tenant_removed", 1, {"tenant": event.tenant_id}),
    TaskStopRequested: _stopped,
    TaskCancelRequested: lambda event: (
        logging.INFO,
        "task_cancel_requested",
        1,
        {"task": task_name(event.task_id)},
    ),
    TasksHeld: lambda event: _many("task_held", event),
    TasksReleased: lambda event: _many("task_released", event),
    PriorityChanged: _priority,
    InventoryChanged: lambda event: (
        logging.INFO,
        "gpus_changed",
        1,
        {"node": event.node_id, "gpus": len(event.gpus)},
    ),
    GpuBlamed: _blamed,
    EstimateLearned: _learned,
    DemandChanged: _demand,
    EpochBegan: lambda event: (logging.INFO, "epoch_began", 1, {"epoch": event.epoch}),
}
_NEVER_A_WARNING = frozenset(
    {
        TasksSubmitted,
        TaskPlaced,
        GangPlaced,
        NodeRegistered,
        NodeDraining,
        NodeResumed,
        NodeRemoved,
        EpochBegan,
        QuotaChanged,
        TenantSet,
        TenantRemoved,
        TaskCancelRequested,
        TasksHeld,
        TasksReleased,
        PriorityChanged,
        InventoryChanged,
        EstimateLearned,
        DemandChanged,
    }
)
