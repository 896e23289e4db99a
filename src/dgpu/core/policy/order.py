"""The order of the queue: highest priority first, then the oldest, over all shapes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from dgpu.core.ids import TaskId
from dgpu.core.policy.fit import Demand
from dgpu.core.state import ClusterState
from dgpu.core.task import TaskStatus


def queue(
    state: ClusterState, *, limit: int, after: TaskId | None = None, after_priority: int | None = None
) -> list[TaskId]:
    """Waiting tasks in order, at most `limit`, from behind `after` on. Those that back off stand where they belong.
    `after_priority` is the priority of `after`; with it, a page can follow one whose last task is gone meanwhile.
    Without it, a task that is unknown starts from the front.
    """
    last = TaskId(0)
    if after is not None:
        if after_priority is None and after in state.tasks:
            after_priority = state.shapes[state.tasks[after].shape_id].priority
        last = after
    found: list[TaskId] = []
    merged = _merge(state, after_priority, last)
    while len(found) < limit and (task_id := next(merged, None)) is not None:
        found.append(task_id)
    return found


def position(state: ClusterState, task_id: TaskId) -> int | None:
    """1 for the first in order; None if it does not wait."""
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.PENDING:
        return None
    priority = state.shapes[task.shape_id].priority
    ahead = 0
    for line in state.waiting.lines.values():
        if line.priority > priority:
            ahead += len(line)
        elif line.priority == priority:
            ahead += line.rank(task_id)
    return ahead + 1


def heads(state: ClusterState, at: int) -> Iterator[tuple[TaskId, Demand]]:
    """The oldest task of each shape that may be placed now, in order."""
    eligible = state.waiting.delayed_until
    found: list[tuple[int, TaskId, Demand]] = []
    for line in state.waiting.lines.values():
        due = [task_id for task_id in line.delayed if eligible[task_id] <= at]
        if line.head:
            due.append(line.head)
        if due:
            found.append((-line.priority, min(due), line.crowd.demand))
    found.sort(key=lambda each: each[:2])
    for _, task_id, demand in found:
        yield task_id, demand


def _merge(state: ClusterState, after_priority: int | None, last: TaskId) -> Iterator[TaskId]:
    """Merges the lines by a heap of their heads: nothing is sorted that is not asked for."""
    merging: list[tuple[int, TaskId, Iterator[TaskId]]] = []
    for line in state.waiting.lines.values():
        if after_priority is not None and line.priority > after_priority:
            continue
        rest = line.after(last if line.priority == after_priority else TaskId(0))
        head = next(rest, None)
        if head is not None:
            merging.append((-line.priority, head, rest))
    heapify(merging)
    while merging:
        priority, head, rest = merging[0]
        yield head
        following = next(rest, None)
        if following is None:
            heappop(merging)
        else:
            heapreplace(merging, (priority, following, rest))
