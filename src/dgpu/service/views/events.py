"""Events as people and programs read them. What a task was told in its environment is not among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dgpu.core import events as e
from dgpu.core.model.health import SEVERITIES
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.quota import MILLION
from dgpu.service.history.reader import PastEvent
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.wire.answers import TaskEvent, instant, instant_or_none

MAX_IDS_SHOWN = 100

NAMES: dict[type[e.Event], str] = {
    e.EpochBegan: "epoch_began",
    e.TasksSubmitted: "task_submitted",
    e.TaskPlaced: "task_scheduled",
    e.TaskStarted: "task_started",
    e.TaskFinished: "task_finished",
    e.TaskRequeued: "task_requeued",
    e.TaskCancelRequested: "task_cancel_requested",
    e.TasksCancelled: "task_cancelled",
    e.GangPlaced: "task_scheduled",
    e.RankEnded: "task_rank_ended",
    e.TasksHeld: "task_held",
    e.TasksReleased: "task_released",
    e.PriorityChanged: "task_priority_changed",
    e.NodeRegistered: "agent_registered",
    e.InventoryChanged: "gpus_changed",
    e.NodeLost: "agent_offline",
    e.NodeDraining: "node_draining",
    e.NodeResumed: "node_resumed",
    e.NodeRemoved: "node_removed",
    e.ObservationChanged: "gpu_observed",
    e.QuotaChanged: "quota_updated",
    e.TenantSet: "tenant_set",
    e.TenantRemoved: "tenant_removed",
    e.TaskStopRequested: "task_stop_requested",
    e.GpuHealthChanged: "gpu_health_changed",
    e.GpuBlamed: "gpu_blamed",
    e.EstimateLearned: "memory_learned",
    e.DemandChanged: "task_demand_changed",
    e.WallClockRead: "wall_clock_read",
}
_BY_CLASS_NAME = {kind.__name__: name for kind, name in NAMES.items()}
# our own housekeeping: nothing happened to anybody
SILENT: tuple[type[e.Event], ...] = (
    e.TasksForgotten,
    e.KeysForgotten,
    e.UsageCharged,
    e.GpuRunSucceeded,
    e.ConditionChanged,
    e.TypicalChanged,
    e.TasksReserved,
)


def facts(event: e.Event) -> dict[str, Any]:
    if isinstance(event, e.TasksSubmitted):
        count = sum(number for number, _ in event.entries)
        return {"first_task_id": task_name(event.first_id), "count": count}
    if isinstance(event, e.TasksCancelled | e.TasksHeld | e.TasksReleased | e.PriorityChanged):
        return _of_many(event)
    if isinstance(event, e.GangPlaced):
        return _shown({"task_id": event.task_id, **gang_facts(event)})
    if isinstance(event, e.NodeRegistered):
        return {"node": event.node.id, "gpus": len(event.gpus), "address": event.node.address}
    if isinstance(event, e.InventoryChanged):
        return {"node": event.node_id, "gpus": len(event.gpus)}
    if isinstance(event, e.QuotaChanged):
        quota = event.quota
        return {
            "online_percent": quota.online_ppm / MILLION,
            "mode": quota.mode.value,
            "reclaim": quota.reclaim.value,
        }
    if isinstance(event, e.TenantSet):
        return {"tenant_id": event.tenant.id}
    if isinstance(event, e.EstimateLearned):
        known = event.estimate
        about = {"model": known.model} if known.model else {"command": known.command}
        return {
            "tenant": known.tenant_id,
            **about,
            "base_mb": known.base_mb,
            "runs": known.runs,
            "ooms": known.ooms,
        }
    if isinstance(event, e.EpochBegan):
        return {"epoch": event.epoch}
    if isinstance(event, e.WallClockRead):
        return {"since": instant(event.since), "wall_offset_ms": event.span.wall_offset_ms}
    if isinstance(event, e.GpuHealthChanged):
        return {**_plain_facts(event), "severity": SEVERITIES.get(event.after, "info")}
    if isinstance(event, e.GpuBlamed):
        blame = event.blame
        failed = {"task": task_name(blame.task_id), "tenant": blame.tenant_id, "program": blame.program}
        return {"gpu": event.gpu_id, "node": event.node_id, **failed}
    return _plain_facts(event)


def _of_many(event: e.TasksCancelled | e.TasksHeld | e.TasksReleased | e.PriorityChanged) -> dict[str, Any]:
    task_ids = named_tasks(event)
    told = {"count": len(task_ids), "task_ids": [task_name(each) for each in task_ids[:MAX_IDS_SHOWN]]}
    return {**told, **shared_facts(event)}


def named_tasks(event: e.Event) -> tuple[TaskId, ...]:
    """The tasks of an event that speaks of several."""
    if isinstance(event, e.PriorityChanged):
        return tuple(task_id for task_id, _ in event.tasks)
    if isinstance(event, e.TasksCancelled | e.TasksHeld | e.TasksReleased):
        return event.task_ids
    return ()


def shared_facts(event: e.Event) -> dict[str, Any]:
    """What such an event says of each of them."""
    if isinstance(event, e.PriorityChanged):
        return {"priority": event.priority}
    if isinstance(event, e.TasksCancelled) and event.reason != "cancelled":
        return {"reason": event.reason}
    return {}


def gang_facts(event: e.GangPlaced) -> dict[str, Any]:
    return {
        "attempt": event.ranks[0].attempt,
        "nodes": [rank.node_id for rank in event.ranks],
        "gpu_ids": [gpu_id for rank in event.ranks for gpu_id in rank.gpu_ids],
    }


_RENAMED = {"node_id": "node", "gpu_ids": "allocated_gpus", "gpu_id": "gpu"}
_TIMES = frozenset({"started_at", "finished_at", "eligible_at"})


def _plain_facts(event: e.Event) -> dict[str, Any]:
    return _shown({name: getattr(event, name) for name in event.__struct_fields__})


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "at" or value == "" or value is None:
            continue
        if name == "task_id":
            shown[name] = task_name(value)
        elif name in _TIMES:
            shown[name] = instant_or_none(value)
        else:
            shown[_RENAMED.get(name, name)] = value
    return shown


def past_task_event(event: PastEvent, task_id: TaskId) -> TaskEvent:
    """From the history, which knows events by the names of their classes."""
    told = {"task_id": task_id, **event.body}
    return TaskEvent(
        index=event.index, at=instant(event.at), type=_BY_CLASS_NAME[event.type], facts=_shown(told)
    )


def past_node_facts(event: PastEvent) -> tuple[str, dict[str, Any]]:
    """Of an event of a node in the history: its name, and what it says."""
    name = _BY_CLASS_NAME[event.type]
    told = event.body
    if event.type == e.NodeRegistered.__name__:
        return name, {"gpus": len(told["gpus"]), "address": told["node"].get("address", "")}
    if event.type == e.InventoryChanged.__name__:
        return name, {"gpus": len(told["gpus"])}
    if event.type == e.GpuBlamed.__name__:
        tenant, program, task_id, *_ = told["blame"]
        failed = {"task": task_name(task_id), "tenant": tenant, "program": program}
        return name, {"gpu": told["gpu_id"], **failed}
    return name, _shown(told)


def event_stream_text(group: CommittedGroup) -> bytes:
    """The group as server-sent events. Its index stands at the last one only: who lost the rest gets it all again."""
    shown = [event for event in group.events if not isinstance(event, SILENT)]
    if not shown:
        return b""
    parts = []
    for event in shown:
        kind = NAMES[type(event)]
        told = {"index": group.index, "at": instant(event.at), "type": kind, **facts(event)}
        parts.append(b"event: %b\ndata: %b\n" % (kind.encode(), msgspec.json.encode(told)))
    return b"\n".join(parts) + b"id: %d\n\n" % group.index


def events_of_task(groups: list[CommittedGroup], task_id: TaskId) -> list[TaskEvent]:
    return [
        task_event(group.index, event, task_id)
        for group in groups
        for event in group.events
        if concerns(event, task_id)
    ]


def concerns(event: e.Event, task_id: TaskId) -> bool:
    if isinstance(event, e.TasksSubmitted):
        return event.first_id <= task_id < event.first_id + sum(number for number, _ in event.entries)
    if task_id in named_tasks(event):
        return True
    return getattr(event, "task_id", None) == task_id


def task_event(index: int, event: e.Event, task_id: TaskId) -> TaskEvent:
    if isinstance(event, e.TasksSubmitted) or named_tasks(event):
        shown: dict[str, Any] = {"task_id": task_name(task_id), **shared_facts(event)}
    else:
        shown = facts(event)
    return TaskEvent(index=index, at=instant(event.at), type=NAMES[type(event)], facts=shown)
