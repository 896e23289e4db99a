"""The order of the queue: highest priority first, then the tenant with the least share (see account), then the oldest,
over all shapes. With ageing, the level replaces the priority (see line).

The order holds for this moment: every grant moves its tenant back among tenants of equal priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from itertools import dropwhile

from dgpu.core.index.line import Line
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Task, TaskStatus
from dgpu.core.state import ClusterState


def queue(
    state: ClusterState, *, limit: int, after: TaskId | None = None, after_level: int | None = None
) -> list[TaskId]:
    """Waiting tasks in order, at most `limit`, starting behind `after`. Tasks that back off keep their place.
    `after_level` is the level of `after`: with it, a page can follow one whose last task is gone. Without it, an
    unknown task starts from the front.
    """
    share, last = 0, TaskId(0)
    if after is not None:
        if after in state.tasks:
            known = state.queue.shapes[state.tasks[after].shape_id]
            share = known.account.share
            after_level = level_of(state, state.tasks[after]) if after_level is None else after_level
        last = after
    found: list[TaskId] = []
    merged = _merge(state, None if after_level is None else (-after_level, share, last))
    while len(found) < limit and (task_id := next(merged, None)) is not None:
        found.append(task_id)
    return found


def position(state: ClusterState, task_id: TaskId) -> int | None:
    """1 for the first in order; None if the task does not wait."""
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.PENDING:
        return None
    own = state.queue.line_of(task)
    level, share = own.level(task_id), own.account.share
    ahead = 0
    for line in state.queue.lines():
        # In a line, an older task never has a lower level. So the tasks ahead are the first ones of the line: all above
        # the level, and at the level all of a tenant with less share, or the older ones of a tenant with the same
        # share.
        above = line.above(level)
        if line.account.share < share:
            above = line.above(level - 1)
        elif line.account.share == share:
            above = max(above, min(line.rank(task_id), line.above(level - 1)))
        ahead += above
    return ahead + 1


def level_of(state: ClusterState, task: Task) -> int:
    """The priority of a task; with ageing, see line."""
    point_ms = state.settings.ageing_ms
    priority = state.shapes[task.shape_id].priority
    return priority - task.created_at // point_ms if point_ms else priority


def _merge(state: ClusterState, place: tuple[int, int, TaskId] | None) -> Iterator[TaskId]:
    """Merges the lines by a heap of their heads, so that only the requested part is sorted."""
    merging: list[tuple[int, int, TaskId, Line, Iterator[TaskId]]] = []
    for line in state.queue.lines():
        rest = _behind(line, place)
        head = next(rest, None)
        if head is not None:
            merging.append((-line.level(head), line.account.share, head, line, rest))
    heapify(merging)
    while merging:
        _, share, head, line, rest = merging[0]
        yield head
        following = next(rest, None)
        if following is None:
            heappop(merging)
        else:
            heapreplace(merging, (-line.level(following), share, following, line, rest))


def _behind(line: Line, place: tuple[int, int, TaskId] | None) -> Iterator[TaskId]:
    """The tasks of a line that come after a place in the order."""
    if place is None:
        return line.after(TaskId(0))
    share = line.account.share
    return dropwhile(lambda each: (-line.level(each), share, each) <= place, line.after(TaskId(0)))
