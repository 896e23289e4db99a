"""The names and facts of each event: one table for the stream of events, the history of nodes, and the log.

It contains nothing from the environment of a task.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dgpu.core import events as e
from dgpu.core.model.health import SEVERITIES, Health
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.quota import MILLION
from dgpu.core.model.task import TaskStatus
from dgpu.wire.answers import instant, instant_or_none

MAX_IDS_SHOWN = 100

Facts = dict[str, Any]
Fields = Mapping[str, Any]  # of an event, or of its body in the history, where nested values are plain

_RENAMED = {"node_id": "node", "gpu_ids": "allocated_gpus", "gpu_id": "gpu"}
_TIMES = frozenset({"started_at", "finished_at", "eligible_at"})
_SHORT = {"task_id": "task", "tenant_id": "tenant", "after": "state"}  # in the log


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """The heading of a log line. Without a name, the line has the name of the event in the stream."""

    level: int = logging.INFO
    name: str = ""


_PLAIN = Heading()
_WARNING = Heading(level=logging.WARNING)


class EventText(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # in the stream and in the history
    facts: Callable[[Fields], Facts]
    # Fields that the log contains, or a function that returns its fields. None: the event is not in the log.
    logged: tuple[str, ...] | Callable[[Any], Facts] | None = None
    heading: Heading | Callable[[Any], Heading | None] = _PLAIN


def facts(event: e.Event) -> Facts:
    return TEXTS[type(event)].facts(msgspec.structs.asdict(event))


def shown(fields: Fields) -> Facts:
    """All fields of an event, with the names of the API. Empty ones are left out."""
    told: Facts = {}
    for name, value in fields.items():
        if name == "at" or value == "" or value is None or (name == "worker" and not value):
            continue
        if name == "task_id":
            told[name] = task_name(value)
        elif name in _TIMES:
            told[name] = instant_or_none(value)
        else:
            told[_RENAMED.get(name, name)] = value
    return told


def named_tasks(event: e.Event) -> tuple[TaskId, ...]:
    """The tasks of an event about several tasks."""
    if isinstance(event, e.PriorityChanged):
        return tuple(task_id for task_id, _ in event.tasks)
    if isinstance(event, e.TasksCancelled | e.CallsFailed | e.TasksHeld | e.TasksReleased):
        return event.task_ids
    return ()


def shared_facts(event: e.Event) -> Facts:
    """The facts that such an event states for each of them."""
    return (
        _shared(msgspec.structs.asdict(event))
        if isinstance(event, e.PriorityChanged | e.TasksCancelled | e.CallsFailed)
        else {}
    )


def gang_facts(event: e.GangPlaced) -> Facts:
    return _ranks(event.ranks)


# The log


def heading_of(event: e.Event) -> Heading | None:
    """None: the event is not logged."""
    text = TEXTS.get(type(event))
    if text is None or text.logged is None:
        return None
    heading = text.heading if isinstance(text.heading, Heading) else text.heading(event)
    if heading is None or heading.name:
        return heading
    return Heading(level=heading.level, name=text.name)


def log_fields(event: e.Event) -> Facts:
    logged = TEXTS[type(event)].logged
    if not isinstance(logged, tuple):
        return {} if logged is None else logged(event)
    found = facts(event)
    return {_SHORT.get(name, name): _plain(found[name]) for name in logged if name in found}


def is_never_a_warning(kind: type[e.Event]) -> bool:
    text = TEXTS.get(kind)
    return text is None or text.logged is None or text.heading is _PLAIN


def count_of(event: e.Event) -> int:
    """The number of tasks, nodes or GPUs in the event."""
    if isinstance(event, e.TasksSubmitted):
        return sum(number for number, _ in event.entries)
    return len(named_tasks(event)) or 1


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


# Facts of single events


def _submitted(fields: Fields) -> Facts:
    count = sum(number for number, _ in fields["entries"])
    return {"first_task_id": task_name(fields["first_id"]), "count": count}


def _several(fields: Fields) -> Facts:
    task_ids = fields["task_ids"] if "task_ids" in fields else [task_id for task_id, _ in fields["tasks"]]
    names = [task_name(each) for each in task_ids[:MAX_IDS_SHOWN]]
    return {"count": len(task_ids), "task_ids": names, **_shared(fields)}


def _shared(fields: Fields) -> Facts:
    if "priority" in fields:
        return {"priority": fields["priority"]}
    return {"reason": fields["reason"]} if fields.get("reason", "cancelled") != "cancelled" else {}


def _worker(fields: Fields) -> Facts:
    models = [
        {"name": model["name"], "loading": model.get("loading", False)}
        for model in msgspec.to_builtins(fields["models"])
    ]
    retires_for = fields["retires_for"]
    return shown({**fields, "models": models, "retires_for": task_name(retires_for) if retires_for else ""})


def _gang(fields: Fields) -> Facts:
    return shown({"task_id": fields["task_id"], **_ranks(fields["ranks"])})


def _ranks(ranks: Sequence[e.TaskPlaced]) -> Facts:
    return {
        "attempt": ranks[0].attempt,
        "nodes": [rank.node_id for rank in ranks],
        "gpu_ids": [gpu_id for rank in ranks for gpu_id in rank.gpu_ids],
    }


def _registered(fields: Fields) -> Facts:
    node = msgspec.to_builtins(fields["node"])
    return {"node": node["id"], "gpus": len(fields["gpus"]), "address": node.get("address", "")}


def _inventory(fields: Fields) -> Facts:
    return shown({**fields, "gpus": len(fields["gpus"])})


def _health(fields: Fields) -> Facts:
    return {**shown(fields), "severity": SEVERITIES.get(Health(fields["after"]), "info")}


def _blamed(fields: Fields) -> Facts:
    tenant, program, task_id, *_ = msgspec.to_builtins(fields["blame"])
    told = shown({name: value for name, value in fields.items() if name != "blame"})
    return {**told, "task": task_name(task_id), "tenant": tenant, "program": program}


def _quota(fields: Fields) -> Facts:
    quota = fields["quota"]
    percent = quota.online_ppm / MILLION
    return {"online_percent": percent, "mode": quota.mode.value, "reclaim": quota.reclaim.value}


def _tenant(fields: Fields) -> Facts:
    return {"tenant_id": fields["tenant"].id}


def _token(fields: Fields) -> Facts:
    token = fields["token"]
    tenants = ["*"] if token.all_tenants else list(token.tenants)
    return {"token_id": token.id, "user": token.user, "role": token.role, "tenants": tenants}


def _secret(fields: Fields) -> Facts:
    secret = fields["secret"]
    return {
        "tenant_id": secret.tenant_id,
        "secret": secret.name,
        "version": secret.version,
        "set_by": secret.set_by,
    }


def _secret_deleted(fields: Fields) -> Facts:
    tenant_id, _, name = fields["secret_id"].partition("/")
    return {"tenant_id": tenant_id, "secret": name}


def _resealed(fields: Fields) -> Facts:
    tasks = sum(len(each.task_ids) for each in fields["details"])
    return {"secrets": len(fields["secrets"]), "tasks": tasks}


def _learned(fields: Fields) -> Facts:
    known = fields["estimate"]
    about = {"model": known.model} if known.model else {"command": known.command}
    figures = {"base_mb": known.base_mb, "runs": known.runs, "ooms": known.ooms}
    return {"tenant": known.tenant_id, **about, **figures}


def _service(fields: Fields) -> Facts:
    """A service with the cause of its last step."""
    service = fields["service"]
    told = {"tenant": service.tenant_id, "service": service.name, "generation": service.generation}
    return {**told, "replicas": len(service.replicas), "step": service.notes[-1][1] if service.notes else ""}


def _epoch(fields: Fields) -> Facts:
    return {"epoch": fields["epoch"]}


def _wall_clock(fields: Fields) -> Facts:
    return {"since": instant(fields["since"]), "wall_offset_ms": fields["span"].wall_offset_ms}


# Log lines that differ from the stream


def _log_submitted(event: e.TasksSubmitted) -> Facts:
    count = count_of(event)
    if count > 1:
        last = task_name(TaskId(event.first_id + count - 1))
        return {"count": count, "first": task_name(event.first_id), "last": last}
    shape = event.entries[0][1].shape
    whose = {"task": task_name(event.first_id), "tenant": shape.tenant_id, "pool": shape.pool.value}
    return {**whose, "priority": shape.priority, "gpus": shape.gpus}


def _log_placed(event: e.TaskPlaced | e.GangPlaced) -> Facts:
    where: Facts
    if isinstance(event, e.GangPlaced):
        ranks, where = event.ranks, {"nodes": [rank.node_id for rank in event.ranks]}
    else:
        ranks, where = (event,), {"node": event.node_id}
    gpus = sum(len(rank.gpu_ids) for rank in ranks)
    run = {"gpus": gpus, "attempt": ranks[0].attempt, "lease": ranks[0].lease_id}
    return {"task": task_name(event.task_id), **where, **run}


def _log_several(
    event: e.TasksHeld | e.TasksReleased | e.PriorityChanged | e.TasksCancelled | e.CallsFailed,
) -> Facts:
    task_ids = named_tasks(event)
    status = {"status": "cancelled"} if isinstance(event, e.TasksCancelled) else {}
    if isinstance(event, e.CallsFailed):
        status = {"status": "failed", "error": event.error}
    return {**status, "count": len(task_ids), "first": task_name(task_ids[0]), **shared_facts(event)}


def _log_demand(event: e.DemandChanged) -> Facts:
    told = {"task": task_name(event.task_id), "gpu_memory_mb": event.gpu_memory_mb}
    return {**told, "cause": "out_of_memory"}


def _finished_heading(event: e.TaskFinished) -> Heading:
    is_failed = event.status is TaskStatus.FAILED
    return Heading(level=logging.WARNING, name="task_failed") if is_failed else _PLAIN


def _cancelled_heading(event: e.TasksCancelled) -> Heading | None:
    if not event.task_ids:
        return None
    is_failed = event.reason != "cancelled"
    return Heading(level=logging.WARNING, name="task_failed") if is_failed else Heading(name="task_finished")


def _worker_heading(event: e.WorkerChanged) -> Heading | None:
    """Only a worker that is down: its models change often."""
    return Heading(level=logging.WARNING, name="worker_down") if event.down else None


def _observed_heading(event: e.ObservationChanged) -> Heading | None:
    return Heading(level=logging.WARNING, name="gpu_fault") if event.fault else None


def _health_heading(event: e.GpuHealthChanged) -> Heading:
    is_critical = SEVERITIES.get(event.after) == "critical"
    return Heading(level=logging.CRITICAL, name="gpu_error") if is_critical else Heading(name="gpu_health")


def _text(
    name: str,
    facts: Callable[[Fields], Facts] = shown,
    logged: tuple[str, ...] | Callable[[Any], Facts] | None = None,
    heading: Heading | Callable[[Any], Heading | None] = _PLAIN,
) -> EventText:
    return EventText(name=name, facts=facts, logged=logged, heading=heading)


_REQUEUED = Heading(level=logging.WARNING, name="task_pending")
_ON_NODE = ("node", "reason")
_LOGGED_OF_HEALTH = ("gpu", "node", "after", "before", "cause", "evidence")

TEXTS: dict[type[e.Event], EventText] = {
    e.EpochBegan: _text("epoch_began", _epoch, ("epoch",)),
    e.TasksSubmitted: _text("task_submitted", _submitted, _log_submitted),
    e.TaskPlaced: _text("task_scheduled", shown, _log_placed),
    e.GangPlaced: _text("task_scheduled", _gang, _log_placed),
    e.TaskStarted: _text("task_started"),
    e.TaskFinished: _text(
        "task_finished", shown, ("task_id", "status", "exit_code", "reason", "error"), _finished_heading
    ),
    e.TaskRequeued: _text("task_requeued", shown, ("task_id", "reason", "counted", "error"), _REQUEUED),
    e.TaskCancelRequested: _text("task_cancel_requested", shown, ("task_id",)),
    e.TaskStopRequested: _text("task_stop_requested", shown, ("task_id", "reason", "error"), _WARNING),
    e.TasksCancelled: _text("task_cancelled", _several, _log_several, _cancelled_heading),
    e.CallsFailed: _text("task_failed", _several, _log_several, _WARNING),
    e.WorkerChanged: _text("worker_changed", _worker, ("task_id", "ready", "down"), _worker_heading),
    e.RankEnded: _text("task_rank_ended"),
    e.TasksHeld: _text("task_held", _several, _log_several),
    e.TasksReleased: _text("task_released", _several, _log_several),
    e.PriorityChanged: _text("task_priority_changed", _several, _log_several),
    e.DemandChanged: _text("task_demand_changed", shown, _log_demand),
    e.NodeRegistered: _text("agent_registered", _registered, ("node", "gpus", "address")),
    e.InventoryChanged: _text("gpus_changed", _inventory, ("node", "gpus")),
    e.NodeLost: _text("agent_offline", shown, _ON_NODE, _WARNING),
    e.NodeDraining: _text("node_draining", shown, _ON_NODE),
    e.NodeResumed: _text("node_resumed", shown, _ON_NODE),
    e.NodeRemoved: _text("node_removed", shown, _ON_NODE),
    e.ObservationChanged: _text("gpu_observed", shown, ("gpu", "fault"), _observed_heading),
    e.GpuHealthChanged: _text("gpu_health_changed", _health, _LOGGED_OF_HEALTH, _health_heading),
    e.GpuBlamed: _text("gpu_blamed", _blamed, ("gpu", "node", "task"), _WARNING),
    e.QuotaChanged: _text("quota_updated", _quota, ("online_percent", "mode", "reclaim")),
    e.TenantSet: _text("tenant_set", _tenant, ("tenant_id",)),
    e.TenantRemoved: _text("tenant_removed", shown, ("tenant_id",)),
    e.EstimateLearned: _text("memory_learned", _learned, ("tenant", "model", "base_mb", "ooms")),
    e.TokenCreated: _text("token_created", _token, ("token_id", "user", "role")),
    e.TokenRevoked: _text("token_revoked", shown, ("token_id",)),
    e.SecretSet: _text("secret_set", _secret, ("tenant_id", "secret", "version", "set_by")),
    e.SecretDeleted: _text("secret_deleted", _secret_deleted, ("tenant_id", "secret")),
    e.Resealed: _text("secrets_resealed", _resealed, ("secrets", "tasks")),
    e.ServiceSet: _text("service_changed", _service, ("tenant", "service", "generation", "replicas", "step")),
    e.ServiceDeleted: _text("service_deleted", shown, ("service_id",)),
    e.WallClockRead: _text("wall_clock_read", _wall_clock),
}
# No task or node changed: internal work of the scheduler, and the audit log, which is read by a call of its own.
SILENT: tuple[type[e.Event], ...] = (
    e.TasksForgotten,
    e.KeysForgotten,
    e.UsageCharged,
    e.GpuRunSucceeded,
    e.ConditionChanged,
    e.TypicalChanged,
    e.TasksReserved,
    e.Audited,
    e.AlertRecordsKept,
    e.AttemptMeasured,
    e.CallReturned,
)
