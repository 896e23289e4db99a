"""Indexes for lists and streams beside the state: numbers of tasks, ids by age, and the latest events.

All of them follow from committed groups. Each group is passed in while the state is exactly the one after that group,
so the fields of a task may be read from the state. The event itself tells what changed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from dgpu.core.events import (
    CallsFailed,
    EpochBegan,
    Event,
    GangPlaced,
    PriorityChanged,
    TaskFinished,
    TaskPlaced,
    TaskRequeued,
    TasksCancelled,
    TasksForgotten,
    TasksSubmitted,
)
from dgpu.core.model.ids import NO_LEASE, NO_TASK, TaskId
from dgpu.core.model.task import Shape, Task, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.array_counts import ArrayCounts
from dgpu.service.views.workers import ProgressOf

MAX_OVERLAY = 100_000  # forgotten tasks that the history has not marked yet
MAX_RECENT_GROUPS = 4_096
MAX_RECENT_WEIGHT = 50_000  # a submitted task or a task id counts as one
_SLACK = 1_024

CountKey = tuple[str, str, int]  # tenant, pool, priority


class Forgotten(NamedTuple):
    """Removed from memory, and perhaps not yet marked so in the history."""

    group: int  # index of the group that forgot it
    task_id: TaskId
    key: CountKey
    status: TaskStatus


class Filter(NamedTuple):
    status: TaskStatus | None = None
    tenant: str | None = None
    pool: str | None = None
    priority: int | None = None
    tenants: tuple[str, ...] | None = None  # those of the reader; None: all

    def takes_key(self, key: CountKey) -> bool:
        tenant, pool, priority = key
        return (
            self.tenant in {None, tenant}
            and self.pool in {None, pool}
            and self.priority in {None, priority}
            and (self.tenants is None or tenant in self.tenants)
        )

    def takes(self, gone: Forgotten) -> bool:
        return self.status in {None, gone.status} and self.takes_key(gone.key)

    @property
    def takes_every_shape(self) -> bool:
        return (self.tenant, self.pool, self.priority, self.tenants) == (None, None, None, None)


class Views:
    """Gets every committed group, in order."""

    def __init__(self, state: ClusterState, last_index: int = 0) -> None:
        self.first_index = last_index  # the history covers tasks that were forgotten before it
        self.last_index = last_index
        self.recent: deque[CommittedGroup] = deque()
        self.state = state
        self._counts: dict[CountKey, dict[TaskStatus, int]] = {}
        self._ids = array("q", sorted(state.tasks))
        self._forgotten_ids = 0  # still in _ids
        self._ended: dict[TaskId, tuple[CountKey, TaskStatus, TaskId]] = {}  # with the array, if any
        self.arrays = ArrayCounts(state.tasks.values())
        self._overlay: deque[Forgotten] = deque()
        self.highest_forgotten = _highest_missing(state)
        self._recent_weight = 0
        self.progress_of: ProgressOf = lambda _: None  # of a call's lease
        self._listeners: list[Callable[[CommittedGroup], None]] = []
        keys = {shape_id: _key(shape) for shape_id, shape in state.shapes.items()}
        counted = Counter((task.shape_id, task.status) for task in state.tasks.values())
        for (shape_id, status), number in counted.items():
            self._add(keys[shape_id], status, number)
        if any(status.is_final for _, status in counted):
            for task in state.tasks.values():
                if task.status.is_final:
                    self._ended[task.id] = (keys[task.shape_id], task.status, task.array_id)

    # Reads

    def live_total(self, wanted: Filter) -> int:
        return sum(
            sum(by_status.values()) if wanted.status is None else by_status.get(wanted.status, 0)
            for key, by_status in self._counts.items()
            if wanted.takes_key(key)
        )

    def counts(self) -> Mapping[CountKey, Mapping[TaskStatus, int]]:
        return self._counts

    def newest(self, wanted: Filter, before: int | None, limit: int) -> list[Task]:
        """Live tasks that match the filter, newest first, ids below `before`. Call it at a committed point."""
        tasks, shapes = self.state.tasks, self.state.shapes
        every_shape = wanted.takes_every_shape
        taken: dict[int, bool] = {}
        found: list[Task] = []
        # No more than exist: the counts are known, so the search stops after the last match.
        limit = min(limit, self.live_total(wanted))
        if limit == 0:
            return found
        for task_id in self._candidates(wanted.status, before):
            task = tasks.get(TaskId(task_id))
            if task is None or (wanted.status is not None and task.status is not wanted.status):
                continue
            if not every_shape:
                takes = taken.get(task.shape_id)
                if takes is None:
                    takes = taken[task.shape_id] = wanted.takes_key(_key(shapes[task.shape_id]))
                if not takes:
                    continue
            found.append(task)
            if len(found) == limit:
                break
        return found

    def _candidates(self, status: TaskStatus | None, before: int | None) -> Iterable[int]:
        """Few tasks run, and few ended tasks are kept: sorting them on demand is cheaper than skipping all waiting
        tasks.
        """
        if status is TaskStatus.RUNNING:
            ids = sorted({lease.task_id for lease in self.state.leases.values()}, reverse=True)
        elif status is not None and status.is_final:
            ids = sorted(self._ended, reverse=True)
        else:
            return self._all_ids(before)
        return ids if before is None else [task_id for task_id in ids if task_id < before]

    def some_ids(self, status: TaskStatus | None, edge: int | None, most: int, *, oldest: bool) -> list[int]:
        """At most this many ids of tasks that may have this status, beyond `edge`, from the newest or, with `oldest`,
        from the oldest. For walks that pause to let other work run.
        """
        if not oldest:
            return list(islice(self._candidates(status, edge), most))
        if status is TaskStatus.RUNNING or (status is not None and status.is_final):
            return [
                each for each in reversed(list(self._candidates(status, None))) if edge is None or each > edge
            ][:most]
        place = 0 if edge is None else bisect_right(self._ids, edge)
        return self._ids[place : place + most].tolist()

    def _all_ids(self, before: int | None) -> Iterator[int]:
        ids = self._ids
        place = len(ids) if before is None else bisect_left(ids, before)
        return map(ids.__getitem__, range(place - 1, -1, -1))

    def forgotten_after(self, index: int, wanted: Filter) -> list[Forgotten]:
        """Forgotten tasks that a history at group `index` has not marked yet."""
        while self._overlay and self._overlay[0].group <= index:
            self._overlay.popleft()
        return [gone for gone in self._overlay if wanted.takes(gone)]

    def recent_after(self, index: int) -> list[CommittedGroup] | None:
        """The groups after a journal index; None if some of them are no longer kept."""
        if index >= self.last_index:
            return []
        if not self.recent or self.recent[0].index > index + 1:
            return None
        first = index + 1 - self.recent[0].index
        return [self.recent[place] for place in range(first, len(self.recent))]

    def listen(self, listener: Callable[[CommittedGroup], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Updates

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            self._on_event(event, group.index)
        self.last_index = group.index
        self._keep(group)
        for listener in tuple(self._listeners):
            listener(group)

    def _on_event(self, event: Event, index: int) -> None:
        kind = type(event)
        if kind is TasksSubmitted:
            self._on_submitted(event)  # type: ignore[arg-type]
        elif kind is TaskPlaced or kind is GangPlaced:
            self._move(event.task_id, TaskStatus.PENDING, TaskStatus.RUNNING)  # type: ignore[attr-defined]
        elif kind is TaskFinished:
            self._on_finished(event)  # type: ignore[arg-type]
        elif kind is TaskRequeued:
            self._move(event.task_id, TaskStatus.RUNNING, TaskStatus.PENDING)  # type: ignore[attr-defined]
        elif kind is TasksCancelled:
            for task_id in event.task_ids:  # type: ignore[attr-defined]
                self._end(task_id, TaskStatus.PENDING, TaskStatus.CANCELLED)
        elif kind is CallsFailed:
            for task_id in event.task_ids:  # type: ignore[attr-defined]
                self._end(task_id, TaskStatus.PENDING, TaskStatus.FAILED)
        elif kind is PriorityChanged:
            self._on_priority(event)  # type: ignore[arg-type]
        elif kind is TasksForgotten:
            self._forget(event.task_ids, index)  # type: ignore[attr-defined]
        elif kind is EpochBegan:
            self.highest_forgotten = _highest_missing(self.state)  # lost tasks may have left gaps in the ids

    def _on_submitted(self, event: TasksSubmitted) -> None:
        number = 0
        by_shape: dict[Shape, int] = {}
        for count, spec in event.entries:
            by_shape[spec.shape] = by_shape.get(spec.shape, 0) + count
            if spec.array:
                self.arrays.on_submitted(TaskId(event.first_id + number), count)
            number += count
        for shape, count in by_shape.items():
            self._add(_key(shape), TaskStatus.PENDING, count)
        self._ids.extend(range(event.first_id, event.first_id + number))

    def _on_priority(self, event: PriorityChanged) -> None:
        for task_id, before in event.tasks:
            key = _key(self.state.shapes[self.state.tasks[task_id].shape_id])
            # The task may change again in the same group: the event tells its state at this point.
            self._add((key[0], key[1], before), TaskStatus.PENDING, -1)
            self._add((key[0], key[1], event.priority), TaskStatus.PENDING, 1)

    def _on_finished(self, event: TaskFinished) -> None:
        before = TaskStatus.PENDING if event.lease_id == NO_LEASE else TaskStatus.RUNNING
        self._end(event.task_id, before, event.status)

    def _forget(self, task_ids: tuple[TaskId, ...], index: int) -> None:
        for task_id in task_ids:
            key, status, array_id = self._ended.pop(task_id)
            self._counts[key][status] -= 1
            if array_id != NO_TASK:
                self.arrays.on_forgotten(array_id)
            self._overlay.append(Forgotten(index, task_id, key, status))
            self.highest_forgotten = max(self.highest_forgotten, task_id)
        while len(self._overlay) > MAX_OVERLAY:
            self._overlay.popleft()
        self._forgotten_ids += len(task_ids)
        if self._forgotten_ids > _SLACK + len(self._ids) // 2:
            tasks = self.state.tasks
            self._ids = array("q", (task_id for task_id in self._ids if task_id in tasks))
            self._forgotten_ids = 0

    def _end(self, task_id: TaskId, before: TaskStatus, after: TaskStatus) -> None:
        key = self._move(task_id, before, after)
        self._ended[task_id] = (key, after, self.state.tasks[task_id].array_id)

    def _move(self, task_id: TaskId, before: TaskStatus, after: TaskStatus) -> CountKey:
        task = self.state.tasks[task_id]
        key = _key(self.state.shapes[task.shape_id])
        # Linear sums: a priority may change in the same group, and the total is right in any order.
        self._add(key, before, -1)
        self._add(key, after, 1)
        if task.array_id:
            self.arrays.on_moved(task.array_id, before, after)
        return key

    def _add(self, key: CountKey, status: TaskStatus, number: int) -> None:
        by_status = self._counts.setdefault(key, {})
        by_status[status] = by_status.get(status, 0) + number

    def _keep(self, group: CommittedGroup) -> None:
        recent = self.recent
        recent.append(group)
        self._recent_weight += _weight(group)
        while len(recent) > MAX_RECENT_GROUPS or (
            self._recent_weight > MAX_RECENT_WEIGHT and len(recent) > 1
        ):
            self._recent_weight -= _weight(recent.popleft())


def _key(shape: Shape) -> CountKey:
    return (shape.tenant_id, shape.pool, shape.priority)


def _weight(group: CommittedGroup) -> int:
    weight = len(group.events)
    for event in group.events:
        if type(event) is TasksSubmitted:
            weight += len(event.entries)
        elif isinstance(event, TasksCancelled | CallsFailed | TasksForgotten):
            weight += len(event.task_ids)
    return weight


def _highest_missing(state: ClusterState) -> int:
    """The newest assigned id that is not in memory: the history adds no task above it."""
    task_id = state.next_task_id - 1
    while task_id > 0 and task_id in state.tasks:
        task_id -= 1
    return task_id
