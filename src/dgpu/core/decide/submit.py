"""Submitting: all or nothing. Dependencies that are met already are left out, and one that can never be met refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from msgspec.structs import replace

from dgpu.core.commands import SubmitTasks
from dgpu.core.decide.apps import new_apps
from dgpu.core.decide.credentials import refused_by_secrets
from dgpu.core.decide.quota import new_tenants, refused_by_number, refused_by_quota
from dgpu.core.decision import Decision
from dgpu.core.events import TasksSubmitted
from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.demand import demand_of
from dgpu.core.model.dependencies import ANY_INDEX, MAX_EDGES, Dependency, When, of_entry
from dgpu.core.model.idempotency import is_same_body, tenant_of
from dgpu.core.model.ids import TaskId, TenantId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Restart, Shape, TaskSpec
from dgpu.core.rejections import (
    AlreadySubmitted,
    DependencyForgotten,
    DependencyNeverMet,
    HistoryBehind,
    KeyReused,
    QueueFull,
    Rejection,
    TimeoutTooLong,
    TooManyDependencies,
    TooManyKeys,
    UnknownDependency,
)
from dgpu.core.rules.capacity import never_fits
from dgpu.core.rules.durations import expected_ms
from dgpu.core.rules.estimate import with_estimate
from dgpu.core.state import ClusterState


def decide_submit(state: ClusterState, command: SubmitTasks) -> Decision:
    refusal = _repeated(state, command) or _too_much(state, command)
    if refusal is not None:
        return refusal
    entries: list[tuple[int, TaskSpec]] = []
    first_ids = list(accumulate((number for number, _ in command.entries), initial=int(state.next_task_id)))
    for entry, (number, submitted) in enumerate(command.entries):
        spec = _accepted(state, command, entry, number, submitted, first_ids)
        if isinstance(spec, Rejection):
            return spec
        if number > 0:
            entries.append((number, spec))
    if not entries:
        return ()
    created = new_tenants(state, entries, command.at)
    if isinstance(created, Rejection):
        return created
    refusal = refused_by_number(state, entries) if state.tenants else None
    if refusal is not None:
        return refusal
    apps = new_apps(state, command, entries)
    if isinstance(apps, Rejection):
        return apps
    return (
        TasksSubmitted(
            at=command.at,
            first_id=state.next_task_id,
            entries=tuple(entries),
            idempotency_key=command.idempotency_key,
            fingerprint=command.fingerprint,
            apps=apps,
        ),
        *created,
    )


def _accepted(
    state: ClusterState,
    command: SubmitTasks,
    entry: int,
    number: int,
    submitted: TaskSpec,
    first_ids: list[int],
) -> TaskSpec | Rejection:
    """The task as journaled: with its time limit, the expected run time, and the tasks that it still waits for.
    `first_ids`: the first task of each entry, and the one after the last entry.
    """
    spec = with_estimate(state, submitted)
    timeout_ms = resolve_timeout(state.settings, spec)
    if timeout_ms is None:
        return TimeoutTooLong(
            entry=entry, timeout_ms=spec.timeout_ms or 0, max_timeout_ms=state.settings.max_timeout_ms
        )
    # While no node has registered, the future nodes are unknown: the task waits.
    refused = never_fits(state, demand_of(_held_shape(command, spec)), entry) if state.nodes else None
    held = _held_shape(command, spec)
    refusal = refused or refused_by_quota(state, held, entry) or refused_by_secrets(state, spec, entry)
    if refusal is not None:
        return refusal
    if spec.timeout_ms != timeout_ms:
        spec = replace(spec, timeout_ms=timeout_ms)
    if state.run_times and not (timeout_ms or spec.allocation or spec.restart is Restart.ALWAYS):
        spec = replace(spec, expected_ms=expected_ms(state.run_times, spec.shape, spec.detail))
    if spec.after and number > 0:
        left = resolve_after(state, spec, number, entry, command.met, first_ids)
        if isinstance(left, Rejection):
            return left
        spec = replace(spec, after=left)
    return spec


def _held_shape(command: SubmitTasks, spec: TaskSpec) -> Shape:
    """The shape that must fit: of the task, or of the workers of a function call."""
    if not spec.shape.app:
        return spec.shape
    return next((app.spec.shape for app in command.apps if app.id == spec.shape.app), spec.shape)


def is_history_behind(state: ClusterState) -> bool:
    """Submits are refused because too many finished tasks are only in memory and in the journal."""
    return state.ended_count > _max_ended(state.settings)


def _max_ended(settings: Settings) -> int:
    return settings.keep_finished + settings.max_unsaved


def resolve_timeout(settings: Settings, spec: TaskSpec) -> int | None:
    """In ms, 0 for no limit; None if it is longer than allowed. Online tasks may run forever, batch tasks only if there
    is no maximum.
    """
    limit_ms = settings.max_timeout_ms
    timeout_ms = spec.timeout_ms
    if timeout_ms is None:
        if spec.shape.pool is Pool.ONLINE:
            return 0
        timeout_ms = settings.default_timeout_ms
        return min(timeout_ms or limit_ms, limit_ms) if limit_ms else timeout_ms
    if limit_ms and (timeout_ms > limit_ms or (timeout_ms == 0 and spec.shape.pool is Pool.BATCH)):
        return None
    return timeout_ms


def _repeated(state: ClusterState, command: SubmitTasks) -> Rejection | None:
    if not command.idempotency_key:
        return None
    known = state.key_ring.find(command.idempotency_key)
    if known is None or known.created_at + state.settings.idempotency_ms <= command.at:
        return None
    if not is_same_body(known, command.fingerprint):
        return KeyReused(key=command.idempotency_key)
    return AlreadySubmitted(first_id=known.first_id, count=known.count, created_at=known.created_at)


def _too_much(state: ClusterState, command: SubmitTasks) -> Rejection | None:
    """Refuses a submit beyond the bounds on memory."""
    settings, ring = state.settings, state.key_ring
    if is_history_behind(state):
        return HistoryBehind(finished=state.ended_count, limit=_max_ended(settings))
    if command.idempotency_key:
        # Old keys make room for new ones (decide_time). Here all keys are younger than an hour, and a limit is reached.
        tenant = tenant_of(command.idempotency_key)
        known = ring.count_of(tenant)
        if known >= settings.max_tenant_keys:
            return TooManyKeys(tenant_id=TenantId(tenant), known=known, limit=settings.max_tenant_keys)
        if ring.count >= settings.max_keys:
            return TooManyKeys(tenant_id=TenantId(""), known=ring.count, limit=settings.max_keys)
    count = sum(number for number, _ in command.entries)
    if state.waiting_count + count > settings.max_waiting:
        return QueueFull(waiting=state.waiting_count, submitted=count, limit=settings.max_waiting)
    return None


def resolve_after(
    state: ClusterState,
    spec: TaskSpec,
    number: int,
    entry: int,
    met: tuple[Dependency, ...],
    first_ids: list[int],
) -> tuple[Dependency, ...] | Rejection:
    """The dependencies that are left. The id of an array stands for all of its tasks."""
    wanted: dict[TaskId, Dependency] = {}
    for named in spec.after:
        if of_entry(entry) < named.task_id < 0:
            earlier = of_entry(0) - named.task_id
            for new_id in map(TaskId, range(first_ids[earlier], first_ids[earlier + 1])):
                wanted[new_id] = Dependency(task_id=new_id, when=named.when)
            continue
        if not 0 < named.task_id < state.next_task_id:
            return UnknownDependency(entry=entry, task_id=named.task_id)
        for task_id in _meant(state, named):
            wanted[task_id] = Dependency(task_id=task_id, when=named.when)
    if len(wanted) * number > MAX_EDGES:
        return TooManyDependencies(entry=entry, number=len(wanted) * number, limit=MAX_EDGES)
    forgotten: list[Dependency] = []
    left: list[Dependency] = []
    looked_up = set(met)
    for task_id, dependency in sorted(wanted.items()):
        task = state.tasks.get(task_id)
        if task_id >= state.next_task_id:
            left.append(dependency)  # a task of this submit
        elif task is None:
            # The task has ended, but its status is no longer in memory.
            if dependency.when is not When.ANY and dependency not in looked_up:
                forgotten.append(dependency)
        elif not task.status.is_final:
            left.append(dependency)
        elif not dependency.is_met_by(task.status):
            return DependencyNeverMet(
                entry=entry, task_id=task_id, when=dependency.when.value, status=task.status.value
            )
    if forgotten:
        return DependencyForgotten(entry=entry, on=tuple(forgotten))
    return tuple(left)


def _meant(state: ClusterState, named: Dependency) -> Iterator[TaskId]:
    task_id = named.task_id
    task = state.tasks.get(task_id)
    if named.index != ANY_INDEX or task is None or task.array_id != task_id:
        return iter((task_id,))
    return map(TaskId, range(task_id, task_id + min(task.array_count, MAX_TASKS)))
