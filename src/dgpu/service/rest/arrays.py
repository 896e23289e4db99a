"""Arrays in calls: the task that an id like `46_3` names, all tasks of an array, and its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dgpu.core.decide.orders import array_tasks
from dgpu.core.model.dependencies import ANY_INDEX
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import Task, TaskSpec, TaskStatus
from dgpu.core.rejections import UnknownDependency
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.history.elements import Member, past_counts, past_element_id, past_members
from dgpu.service.rest import listing
from dgpu.service.rest.attempt import note_tenant
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.ownership import tenant_of
from dgpu.wire.answers import Problem, TaskAnswer
from dgpu.wire.array_answers import MAX_FAILURES, ArrayAnswer, ElementAnswer
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import Entries
from dgpu.wire.task_names import Element, Named, name_of, parse_named

_UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


class Members(NamedTuple):
    size: int  # of the array; the history may have lost some of its tasks
    tasks: list[Member]  # by id


def is_array(backend: Backend, task_id: TaskId) -> bool:
    """Whether this is the id of an array of which tasks are in memory."""
    return bool(backend.views.arrays.of(task_id))


# Elements


async def find_element(backend: Backend, who: Principal, action: Action, element: Element) -> TaskId:
    """A task of another tenant is like one that never was."""
    found = await _find(backend, element)
    tenant_id = None if found is None else await tenant_of(backend, found)
    note_tenant(tenant_id)
    if found is None or tenant_id is None or not may(who, action, tenant_id):
        raise ProblemError(_unknown(element))
    return found


async def _find(backend: Backend, element: Element) -> TaskId | None:
    found = await backend.runtime.read(lambda state: _element(state, element))
    if found is not None:
        return found
    return await asyncio.to_thread(past_element_id, backend.history, *element)


def _element(state: ClusterState, element: Element) -> TaskId | None:
    first = state.tasks.get(element.array_id)
    if first is not None:
        if first.array_id != element.array_id:
            return None
        # Most arrays count up by one.
        guess = state.tasks.get(TaskId(element.array_id + element.array_index - first.array_index))
        if guess is not None and (guess.array_id, guess.array_index) == element:
            return guess.id
    return next(
        (task.id for task in array_tasks(state, element.array_id) if task.array_index == element.array_index),
        None,
    )


def _unknown(element: Element) -> Problem:
    array = task_name(element.array_id)
    detail = (
        f"There is no task {name_of(element)}: no array {array}, or no index {element.array_index} in it."
    )
    return Problem(status=404, title="No such task", code="unknown_task", detail=detail)


async def resolve_path(
    backend: Backend, who: Principal, action: Action, named: dict[str, Any]
) -> dict[str, Any]:
    """The names of a path; if there is an id like `46_3`, a copy with the id of this task in its place."""
    element = parse_named(named.get("task_id", ""))
    if not isinstance(element, Element):
        return named
    return {**named, "task_id": task_name(await find_element(backend, who, action, element))}


async def resolve_names(
    backend: Backend, who: Principal, action: Action, named: tuple[Named, ...]
) -> tuple[TaskId, ...]:
    """The tasks that are meant: the id of an array means its tasks that have not ended."""
    found: dict[TaskId, None] = {}
    arrays: list[TaskId] = []
    for each in named:
        if isinstance(each, Element):
            found[await find_element(backend, who, action, each)] = None
        elif is_array(backend, each):
            arrays.append(each)
        else:
            found[each] = None

    def look(state: ClusterState) -> list[TaskId]:
        return [task.id for array_id in arrays for task in array_tasks(state, array_id) if _is_live(task)]

    if arrays:
        found.update(dict.fromkeys(await backend.runtime.read(look)))
    return tuple(found)


def _is_live(task: Task) -> bool:
    return not task.status.is_final


async def resolve_after(backend: Backend, who: Principal, entries: Entries, *, batch: bool) -> Entries:
    """Replaces dependencies on elements by dependencies on their tasks."""
    if not any(dependency.index != ANY_INDEX for _, spec in entries for dependency in spec.after):
        return entries
    return tuple(
        [
            (count, await _after(backend, who, number, spec, batch=batch))
            for number, (count, spec) in enumerate(entries)
        ]
    )


async def _after(backend: Backend, who: Principal, entry: int, spec: TaskSpec, *, batch: bool) -> TaskSpec:
    after = []
    for dependency in spec.after:
        if dependency.index == ANY_INDEX:
            after.append(dependency)
            continue
        element = Element(dependency.task_id, dependency.index)
        try:
            task_id = await find_element(backend, who, Action.READ_TASK, element)
        except ProblemError:
            unknown = UnknownDependency(entry=entry, task_id=element.array_id, index=element.array_index)
            raise ProblemError(problem_of(unknown, batch=batch)) from None
        after.append(replace(dependency, task_id=task_id))
    return replace(spec, after=tuple(sorted(after)))


# All tasks of an array


async def members_of(backend: Backend, array_id: TaskId) -> Members | None:
    """None: this is not the id of an array."""
    known: dict[TaskId, Member] = {}
    size = await backend.runtime.read(lambda state: _look(state, array_id, known))
    if not size or len(known) < size:
        past_size, past = await asyncio.to_thread(past_members, backend.history, array_id)
        size = size or past_size
        for member in past:
            known.setdefault(member.task_id, member)
    return Members(size, [known[task_id] for task_id in sorted(known)]) if known else None


def _look(state: ClusterState, array_id: TaskId, known: dict[TaskId, Member]) -> int:
    """Adds the tasks in memory; returns the size of the array, or 0 if it is not in memory."""
    first = state.tasks.get(array_id)
    if first is not None and first.array_id != array_id:
        return 0
    size = 0
    for task in array_tasks(state, array_id):
        known[task.id] = Member(task.id, task.array_index, task.status, task.exit_code, task.reason)
        size = task.array_count
    return size


async def shown(backend: Backend, who: Principal, task_id: TaskId, *, element: bool) -> TaskAnswer:
    """The task; if its id means an array, with the progress of the array."""
    task = await listing.find_task(backend, who, task_id)
    if element or task.array_id != task.task_id:
        return task
    members = await members_of(backend, task_id)
    return task if members is None else replace(task, array=_answer(members))


def _answer(members: Members) -> ArrayAnswer:
    counts: dict[TaskStatus, int] = {}
    for member in members.tasks:
        counts[member.status] = counts.get(member.status, 0) + 1
    unsuccessful = sorted(
        (member for member in members.tasks if member.status in _UNSUCCESSFUL),
        key=lambda member: member.array_index,
    )
    failures = [
        ElementAnswer(
            task_id=task_name(each.task_id),
            index=each.array_index,
            status=each.status.value,
            exit_code=each.exit_code,
            reason=each.reason,
        )
        for each in unsuccessful[:MAX_FAILURES]
    ]
    return replace(_counted(members.size, counts), failures=failures)


async def progress_of(backend: Backend, array_id: TaskId, count: int) -> ArrayAnswer:
    """Without the failures. Of an array that is in memory as a whole, no task is looked at."""
    counts: Mapping[TaskStatus, int] = dict(backend.views.arrays.of(array_id))
    if sum(counts.values()) < count:
        past = await asyncio.to_thread(past_counts, backend.history, array_id)
        counts = {**counts, **_larger(past, counts)}
    return _counted(count, counts)


def _larger(past: Mapping[TaskStatus, int], known: Mapping[TaskStatus, int]) -> dict[TaskStatus, int]:
    """The history may lag behind the memory, and the memory has forgotten some tasks."""
    return {status: max(number, known.get(status, 0)) for status, number in past.items()}


def _counted(count: int, counts: Mapping[TaskStatus, int]) -> ArrayAnswer:
    numbers: dict[str, Any] = {status.value: number for status, number in counts.items()}
    return ArrayAnswer(count=count, **numbers)


def ranges_of(indexes: Iterator[int]) -> tuple[tuple[int, int, int], ...]:
    """Runs of consecutive indexes, in the given order."""
    ranges: list[tuple[int, int, int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index, 1)
        else:
            ranges.append((index, index, 1))
    return tuple(ranges)
