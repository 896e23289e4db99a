"""How the replicas of a service follow its specification: one step at a time, each with its reason."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.service import MAX_NOTES, STALLED, STOP_FIRST, Replica, Service
from dgpu.core.model.task import Task, TaskStatus

FIRST_DELAY_MS: Final = 1_000
MAX_DELAY_MS: Final = 300_000
MAX_FAILURES: Final = 3  # of a new generation: then the roll-out stops
MAX_RESTARTS: Final = 3  # of a replica that was never ready
_MAX_DOUBLINGS: Final = 16
_MAX_ERROR_CHARS: Final = 200


class Reading(NamedTuple):
    """The last check of a replica, and its requests in progress."""

    ok: bool
    requests: int = 0


class Step(NamedTuple):
    service: Service
    starts: int = 0  # new replicas of the active generation
    stops: tuple[TaskId, ...] = ()


def next_step(
    service: Service, tasks: dict[TaskId, Task], readings: dict[TaskId, Reading], load: int, at: int
) -> Step:
    """Pure: the service as it should be now, and the tasks to start and to stop."""
    service = _looked_at(service, tasks, readings, at)
    service = _scaled(service, load, at)
    service, failed = _without_failed(service, tasks, at)
    service = _with_leaving(service, at)
    gone = tuple(each.task_id for each in service.replicas if _may_stop(service, each, readings, at))
    service = replace(service, replicas=tuple(each for each in service.replicas if each.task_id not in gone))
    return Step(service, _missing(service, at), (*failed, *gone))


def noted(service: Service, at: int, text: str) -> Service:
    return replace(service, notes=(*service.notes, (at, text))[-MAX_NOTES:])


def with_started(service: Service, task_ids: tuple[TaskId, ...], at: int) -> Service:
    generation = service.active[1]
    new = tuple(Replica(task_id=task_id, generation=generation, since=at) for task_id in task_ids)
    service = replace(service, replicas=(*service.replicas, *new))
    names = ", ".join(map(task_name, task_ids))
    return noted(service, at, f"started {names} (generation {generation}, {service.wanted} wanted)")


def _looked_at(
    service: Service, tasks: dict[TaskId, Task], readings: dict[TaskId, Reading], at: int
) -> Service:
    """Replicas whose task has ended are dropped: another one takes their place."""
    seen: list[Replica] = []
    for replica in service.replicas:
        task = tasks.get(replica.task_id)
        if task is None or task.status.is_final or task.cancelling:
            if not replica.leaving_at:
                service = noted(service, at, f"{task_name(replica.task_id)} was cancelled or has ended")
            continue
        reading = readings.get(replica.task_id)
        runs = task.status is TaskStatus.RUNNING and task.started_at > 0
        ready = runs and (replica.ready if reading is None else reading.ok)
        if ready != replica.ready:
            replica = replace(replica, ready=ready, since=at, was_ready=replica.was_ready or ready)  # noqa: PLW2901
            service = noted(
                service, at, f"{task_name(replica.task_id)} is {'ready' if ready else 'not ready'}"
            )
            if ready and replica.generation == service.active[1]:
                service = replace(service, failures=0, retry_at=0)
        seen.append(replica)
    return replace(service, replicas=tuple(seen))


def _scaled(service: Service, load: int, at: int) -> Service:
    """Up at once, down one by one after a calm time: so the number does not swing."""
    spec = service.active[0]
    low, high = spec.min_replicas, max(spec.min_replicas, spec.max_replicas)
    needed = min(max(-(-load // spec.requests), low), high)
    wanted = min(max(service.wanted, low), high)
    text = f"{load} requests in progress, {spec.requests} per replica"
    if needed > wanted:
        service = noted(service, at, f"scaled from {wanted} to {needed}: {text}")
        return replace(service, wanted=needed, calm_since=0)
    if needed == wanted:
        return replace(service, wanted=wanted, calm_since=0)
    if not service.calm_since:
        return replace(service, wanted=wanted, calm_since=at)
    if at - service.calm_since < spec.calm_ms:
        return replace(service, wanted=wanted)
    service = noted(service, at, f"scaled from {wanted} to {wanted - 1}: {text} for {spec.calm_ms // 1000} s")
    return replace(service, wanted=wanted - 1, calm_since=at)


def _without_failed(
    service: Service, tasks: dict[TaskId, Task], at: int
) -> tuple[Service, tuple[TaskId, ...]]:
    failed = [
        each for each in service.replicas if not each.leaving_at and _has_failed(service, tasks, each, at)
    ]
    for replica in failed:
        name = task_name(replica.task_id)
        if replica.generation != service.active[1]:
            continue
        failures = service.failures + 1
        delay_ms = min(MAX_DELAY_MS, FIRST_DELAY_MS << min(failures, _MAX_DOUBLINGS))
        text = f"{name} is replaced: {_why_failed(tasks, replica, at)}; next try in {delay_ms // 1000} s"
        service = noted(replace(service, failures=failures, retry_at=at + delay_ms), at, text)
        if failures >= MAX_FAILURES and service.previous is not None and service.status != STALLED:
            if any(each.was_ready for each in service.replicas if each.generation == service.generation):
                continue
            text = (
                f"the roll-out of generation {service.generation} was stopped: {failures} replicas never became "
                f"ready; generation {service.previous_generation} serves"
            )
            service = noted(replace(service, status=STALLED, failures=0, retry_at=0), at, text)
    gone = {each.task_id for each in failed}
    return replace(
        service, replicas=tuple(each for each in service.replicas if each.task_id not in gone)
    ), tuple(sorted(gone))


def _has_failed(service: Service, tasks: dict[TaskId, Task], replica: Replica, at: int) -> bool:
    """A replica that waits for a GPU has not failed."""
    task = tasks[replica.task_id]
    if replica.ready:
        return False
    if not replica.was_ready and task.retries >= MAX_RESTARTS:
        return True
    if task.status is not TaskStatus.RUNNING or not task.started_at:
        return False
    spec = service.active[0]
    since = max(replica.since, task.started_at)
    return at - since >= (spec.unready_ms if replica.was_ready else spec.start_ms)


def _why_failed(tasks: dict[TaskId, Task], replica: Replica, at: int) -> str:
    task = tasks[replica.task_id]
    if not replica.was_ready and task.retries >= MAX_RESTARTS:
        last = f" (last: {task.error[:_MAX_ERROR_CHARS]})" if task.error else ""
        return f"it ended {task.retries} times before it was ready{last}"
    return f"not ready for {(at - max(replica.since, task.started_at)) // 1000} s"


def _with_leaving(service: Service, at: int) -> Service:
    """Marks surplus replicas. A ready one is marked only if enough others are ready."""
    spec, generation = service.active
    staying = [each for each in service.replicas if not each.leaving_at]
    old = [each for each in staying if each.generation != generation]
    new = [each for each in staying if each.generation == generation]
    leaving: list[Replica] = []
    if old:
        ready_new = sum(each.ready for each in new)
        spare = len(staying) - service.wanted
        if spec.replace == STOP_FIRST and spare <= 0 and ready_new == len(new):
            spare = 1
        for each in sorted(old, key=lambda each: (each.ready, each.task_id)):
            ready_left = ready_new + sum(one.ready for one in old if one not in leaving) - each.ready
            if spare > len(leaving) and (
                not each.ready or ready_left >= service.wanted or spec.replace == STOP_FIRST
            ):
                leaving.append(each)
    if len(leaving) == len(old):
        spare = len(new) - service.wanted
        leaving += sorted(new, key=lambda each: (each.ready, -each.task_id))[: max(0, spare)]
    if not leaving:
        return service
    gone = {each.task_id for each in leaving}
    marked = [replace(each, leaving_at=at) if each.task_id in gone else each for each in service.replicas]
    names = ", ".join(task_name(each.task_id) for each in leaving)
    return noted(replace(service, replicas=tuple(marked)), at, f"{names} gets no new requests and will stop")


def _may_stop(service: Service, replica: Replica, readings: dict[TaskId, Reading], at: int) -> bool:
    if not replica.leaving_at:
        return False
    left_ms = at - replica.leaving_at
    reading = readings.get(replica.task_id, Reading(ok=False))
    is_idle = not reading.requests and left_ms >= FIRST_DELAY_MS
    return not replica.ready or is_idle or left_ms >= service.active[0].drain_ms


def _missing(service: Service, at: int) -> int:
    """One more than wanted may run while an older generation is replaced."""
    if at < service.retry_at:
        return 0
    spec, generation = service.active
    staying = [each for each in service.replicas if not each.leaving_at]
    new = sum(each.generation == generation for each in staying)
    old = len(staying) - new
    surge = 1 if old and spec.replace != STOP_FIRST else 0
    return max(0, min(service.wanted - new, service.wanted + surge - len(staying)))
