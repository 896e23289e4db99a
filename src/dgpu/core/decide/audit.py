"""Entries of the audit log. The entry of an accepted command is one of its events: both are durable, or neither."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dgpu.core import events
from dgpu.core.commands import RecordAudit
from dgpu.core.decision import Decision
from dgpu.core.events import Audited, Event
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.ids import TaskId, TenantId, task_name
from dgpu.core.model.tokens import Token
from dgpu.core.state import ClusterState


def decide_record_audit(_state: ClusterState, command: RecordAudit) -> Decision:
    return tuple(Audited(command.at, entry) for entry in command.entries)


def audited(state: ClusterState, entry: AuditEntry, decided: Sequence[Event], at: int) -> Audited:
    """The entry of a command, with the tasks and the tenant that its events name. Asked before they are applied."""
    first = decided[0] if decided else None
    if isinstance(first, events.TasksSubmitted):
        tenants = {spec.shape.tenant_id for _, spec in first.entries}
        tasks = sum(number for number, _ in first.entries)
        subject = entry.subject or task_name(first.first_id)
        return Audited(at, replace(entry, subject=subject, tenant_id=_only(tenants), tasks=tasks))
    if isinstance(first, events.TokenCreated):
        return Audited(at, _of_token(entry, first.token))
    if isinstance(first, events.TokenRevoked):
        return Audited(at, _of_token(entry, state.tokens[first.token_id]))
    if isinstance(first, events.TenantSet):
        return Audited(at, replace(entry, subject=first.tenant.id, tenant_id=first.tenant.id))
    if isinstance(first, events.TenantRemoved):
        return Audited(at, replace(entry, subject=first.tenant_id, tenant_id=first.tenant_id))
    if isinstance(first, events.SecretSet):
        return Audited(at, replace(entry, subject=first.secret.name, tenant_id=first.secret.tenant_id))
    if isinstance(first, events.SecretDeleted):
        secret = state.secrets[first.secret_id]
        return Audited(at, replace(entry, subject=secret.name, tenant_id=secret.tenant_id))
    named = _tasks_of(decided)
    if not named:
        return Audited(at, entry)
    tenants = {state.shapes[state.tasks[task_id].shape_id].tenant_id for task_id in named}
    subject = entry.subject or (task_name(named[0]) if len(named) == 1 else "")
    return Audited(at, replace(entry, subject=subject, tenant_id=_only(tenants), tasks=len(named)))


def _of_token(entry: AuditEntry, token: Token) -> AuditEntry:
    tenant_id = "" if token.all_tenants else _only(token.tenants)
    return replace(entry, subject=token.id, tenant_id=tenant_id)


def _tasks_of(decided: Sequence[Event]) -> list[TaskId]:
    named: list[TaskId] = []
    for event in decided:
        if isinstance(event, events.TasksCancelled | events.TasksHeld | events.TasksReleased):
            named += event.task_ids
        elif isinstance(event, events.PriorityChanged):
            named += [task_id for task_id, _ in event.tasks]
        elif isinstance(event, events.TaskCancelRequested | events.TaskFinished):
            named.append(event.task_id)
    return named


def _only(tenants: Iterable[TenantId]) -> str:
    """The tenant, if there is exactly one."""
    found = list(tenants)
    return found[0] if len(found) == 1 else ""
