"""Services: their specification, and the steps that make replicas follow it."""

from __future__ import annotations

from itertools import chain
from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import DeleteService, ScaleService, SetService, StepServices, SubmitTasks
from dgpu.core.decide.orders import cancel
from dgpu.core.decide.submit import decide_submit
from dgpu.core.decision import Decision
from dgpu.core.events import Event, ServiceDeleted, ServiceSet, TasksSubmitted
from dgpu.core.model.ids import TaskId
from dgpu.core.model.service import MAX_SERVICES, Service, ServiceSpec, service_id
from dgpu.core.model.task import TaskSpec
from dgpu.core.rejections import NoEarlierGeneration, Rejection, TooManyServices, UnknownService
from dgpu.core.rules.replicas import next_step, noted, with_started
from dgpu.core.state import ClusterState

MAX_STARTS: Final = 100  # services with new replicas in one step; the others wait for the next one


def decide_set_service(state: ClusterState, command: SetService) -> Decision:
    """Refused as a submit of one replica would be."""
    known = state.services.get(service_id(command.tenant_id, command.name))
    if command.rolls_back or command.restarts:
        if known is None:
            return UnknownService(tenant_id=command.tenant_id, name=command.name)
        return _rolled_back(known, command) if command.rolls_back else _restarted(known, command)
    if known is None and len(state.services) >= MAX_SERVICES:
        return TooManyServices(limit=MAX_SERVICES)
    spec = command.spec
    trial = decide_submit(state, SubmitTasks(at=command.at, entries=((1, spec.task),)))
    if isinstance(trial, Rejection):
        return trial
    created = tuple(event for event in trial if not isinstance(event, TasksSubmitted))
    if known is None:
        service = Service(
            name=command.name,
            tenant_id=command.tenant_id,
            spec=spec,
            wanted=spec.min_replicas,
            set_by=command.set_by,
        )
        service = noted(service, command.at, f"created by {command.set_by or 'an unknown user'}")
        return (*created, ServiceSet(at=command.at, service=service))
    changed = _updated(known, command)
    return () if changed is known else (*created, ServiceSet(at=command.at, service=changed))


def _updated(known: Service, command: SetService) -> Service:
    spec = command.spec
    if spec == known.spec and not known.status:
        return known
    by = command.set_by or "an unknown user"
    if _same_replicas(spec, known.spec) and not known.status:
        return noted(replace(known, spec=spec, set_by=command.set_by), command.at, _changed_by(by, spec))
    changed = _next_generation(known, spec, command.set_by)
    return noted(changed, command.at, f"roll-out of generation {changed.generation} by {by}")


def _next_generation(known: Service, spec: ServiceSpec, set_by: str) -> Service:
    serving, serving_generation = known.active
    return replace(
        known,
        spec=spec,
        generation=max(known.generation, known.previous_generation) + 1,
        previous=serving,
        previous_generation=serving_generation,
        status="",
        failures=0,
        retry_at=0,
        set_by=set_by,
    )


def _restarted(known: Service, command: SetService) -> Decision:
    """As a roll-out of what serves now: a restart of a stalled service does not try the failed specification again."""
    changed = _next_generation(known, known.active[0], command.set_by)
    text = f"restarted as generation {changed.generation} by {command.set_by or 'an unknown user'}"
    return (ServiceSet(at=command.at, service=noted(changed, command.at, text)),)


def _changed_by(by: str, spec: ServiceSpec) -> str:
    lowest, highest = spec.min_replicas, spec.max_replicas
    number = str(highest) if lowest == highest else f"{lowest} to {highest}"
    return f"changed by {by}: {number} {'replica' if number == '1' else 'replicas'}"


def decide_scale_service(state: ClusterState, command: ScaleService) -> Decision:
    """Starts no roll-out: of a stalled service, the generation that serves gets another number of replicas."""
    known = state.services.get(service_id(command.tenant_id, command.name))
    if known is None:
        return UnknownService(tenant_id=command.tenant_id, name=command.name)
    spec, previous = _scaled(known.spec, command), known.previous
    if previous is not None:
        previous = _scaled(previous, command)
    if spec == known.spec and previous == known.previous:
        return ()
    changed = replace(known, spec=spec, previous=previous, set_by=command.set_by)
    text = _changed_by(command.set_by or "an unknown user", spec)
    return (ServiceSet(at=command.at, service=noted(changed, command.at, text)),)


def _scaled(spec: ServiceSpec, command: ScaleService) -> ServiceSpec:
    low, high = command.min_replicas, command.max_replicas
    if low is None:
        low = spec.min_replicas if high is None else min(spec.min_replicas, high)
    if high is None:
        high = max(spec.max_replicas, low)
    return replace(spec, min_replicas=low, max_replicas=high)


def _rolled_back(known: Service, command: SetService) -> Decision:
    if known.previous is None:
        return NoEarlierGeneration(tenant_id=command.tenant_id, name=command.name)
    changed = replace(
        known,
        spec=known.previous,
        generation=known.previous_generation,
        previous=known.spec,
        previous_generation=known.generation,
        status="",
        failures=0,
        retry_at=0,
        set_by=command.set_by,
    )
    text = f"rolled back to generation {changed.generation} by {command.set_by or 'an unknown user'}"
    return (ServiceSet(at=command.at, service=noted(changed, command.at, text)),)


def _same_replicas(one: ServiceSpec, other: ServiceSpec) -> bool:
    """The tasks are equal: only their number and the checks differ."""
    return one.task == other.task and one.port == other.port


def decide_delete_service(state: ClusterState, command: DeleteService) -> Decision:
    key = service_id(command.tenant_id, command.name)
    known = state.services.get(key)
    if known is None:
        return UnknownService(tenant_id=command.tenant_id, name=command.name)
    live = [each.task_id for each in known.replicas if each.task_id in state.tasks]
    return (ServiceDeleted(at=command.at, service_id=key), *cancel(state, live, command.at))


def decide_step_services(state: ClusterState, command: StepServices) -> Decision:
    """Events only for services that change. The tasks of all new replicas are one submit."""
    events: list[Event] = []
    entries: list[tuple[int, TaskSpec]] = []
    stops: list[TaskId] = []
    next_id = int(state.next_task_id)
    for key in sorted(state.services):
        if len(entries) >= MAX_STARTS:
            break
        known = state.services[key]
        step = next_step(known, state.tasks, command.readings, command.load.get(key, 0), command.at)
        service = step.service
        if step.starts:
            # Together with the replicas of other services: limits of a tenant and of the queue count them all.
            wanted = (*entries, (step.starts, service.active[0].task))
            submitted = decide_submit(state, SubmitTasks(at=command.at, entries=wanted))
            if isinstance(submitted, Rejection):
                service = _held_up(service, submitted, command.at)
            else:
                entries = [
                    entry for each in submitted if isinstance(each, TasksSubmitted) for entry in each.entries
                ]
                new = tuple(TaskId(next_id + number) for number in range(step.starts))
                next_id += step.starts
                service = with_started(service, new, command.at)
        stops += [task_id for task_id in step.stops if task_id in state.tasks]
        if service != known:
            events.append(ServiceSet(at=command.at, service=service))
    made: tuple[Event, ...] = ()
    if entries:
        made = (TasksSubmitted(at=command.at, first_id=state.next_task_id, entries=tuple(entries)),)
    return tuple(chain(made, events, cancel(state, stops, command.at)))


def _held_up(service: Service, refusal: Rejection, at: int) -> Service:
    """Tried again later; the note is written once."""
    text = f"no replica can be started: {refusal.code}"
    waits = replace(service, retry_at=at + 60_000)
    return waits if service.notes and service.notes[-1][1] == text else noted(waits, at, text)
