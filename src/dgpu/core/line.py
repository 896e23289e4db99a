"""A line: the waiting tasks of one shape, by age. A crowd: the lines of one demand, which fit or fail together."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from dgpu.core.ids import ShapeId, TaskId
from dgpu.core.policy.fit import Demand
from dgpu.core.task import Shape

NOBODY = TaskId(0)
SLACK = 64  # stale entries tolerated in a heap beyond its live ones

# The place of a line in the order: highest priority first, then the oldest head.
Turn: TypeAlias = tuple[int, TaskId, ShapeId]  # (-priority, head, shape)


class Crowd:
    """Awake: its first task in order may fit. Blocked: it fits nowhere until a node has more to give."""

    __slots__ = ("_turns", "awake_as", "blocked", "demand", "lines")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.lines: dict[ShapeId, Line] = {}
        self.awake_as: Turn | None = None  # the turn that the order of all crowds knows it by
        self.blocked = False
        self._turns: list[Turn] = []  # heap, stale ones too

    def list_line(self, line: Line) -> None:
        """After its head changed. One listed with an older head is put right when its turn comes."""
        head = line.head
        if not head or 0 < line.listed_as <= head:
            return
        line.listed_as = head
        heappush(self._turns, (-line.priority, head, line.shape_id))
        if len(self._turns) > 2 * len(self.lines) + SLACK:
            self._turns = [
                (-each.priority, each.listed_as, each.shape_id)
                for each in self.lines.values()
                if each.listed_as
            ]
            heapify(self._turns)

    def first(self) -> Turn | None:
        turns = self._turns
        while turns:
            turn = turns[0]
            line = self.lines.get(turn[2])
            if line is None or line.listed_as != turn[1]:
                heappop(turns)
                continue
            head = line.head
            if head == turn[1]:
                return turn
            line.listed_as = head
            if head:
                heapreplace(turns, (turn[0], head, turn[2]))
            else:
                heappop(turns)
        return None


class Line:
    """The tasks that back off are apart: nobody waits behind them."""

    __slots__ = (
        "_ready",
        "_start",
        "crowd",
        "delayed",
        "head",
        "listed_as",
        "priority",
        "shape",
        "shape_id",
        "uses",
    )

    def __init__(self, shape_id: ShapeId, shape: Shape, crowd: Crowd) -> None:
        self.shape_id = shape_id
        self.shape = shape
        self.priority = shape.priority
        self.crowd = crowd
        self.uses = 0  # tasks of this shape in the state, whatever their status
        self.head = NOBODY  # the oldest that is ready
        self.listed_as = NOBODY  # the head that its crowd knows it by
        self.delayed: list[TaskId] = []  # sorted
        self._ready: list[TaskId] = []  # sorted from `_start` on; what is before was taken
        self._start = 0

    def copy(self, crowd: Crowd) -> Line:
        twin = Line(self.shape_id, self.shape, crowd)
        twin.uses = self.uses
        twin.delayed = self.delayed.copy()
        twin._ready = self.ready
        twin.head = self.head
        return twin

    def __len__(self) -> int:
        return len(self._ready) - self._start + len(self.delayed)

    @property
    def ready(self) -> list[TaskId]:
        return self._ready[self._start :]

    def rank(self, task_id: TaskId) -> int:
        """How many tasks of this line are older."""
        return (
            bisect_left(self._ready, task_id, self._start) - self._start + bisect_left(self.delayed, task_id)
        )

    def after(self, task_id: TaskId) -> Iterator[TaskId]:
        """By age, those that back off included. The line must not change meanwhile."""
        ready, delayed = self._ready, self.delayed
        one, other = bisect_left(ready, task_id + 1, self._start), bisect_left(delayed, task_id + 1)
        while one < len(ready) or other < len(delayed):
            if other == len(delayed) or (one < len(ready) and ready[one] < delayed[other]):
                yield ready[one]
                one += 1
            else:
                yield delayed[other]
                other += 1

    def extend(self, task_ids: list[TaskId]) -> None:
        """New tasks are younger than all others."""
        self._ready.extend(task_ids)
        self.head = self._ready[self._start]

    def add(self, task_id: TaskId) -> None:
        ready = self._ready
        if self._start == len(ready) or task_id > ready[-1]:
            ready.append(task_id)
        elif self._start and task_id < ready[self._start]:
            self._start -= 1
            ready[self._start] = task_id
        else:
            insort(ready, task_id, self._start)
        self.head = ready[self._start]

    def remove(self, task_id: TaskId) -> None:
        ready, start = self._ready, self._start
        if start < len(ready) and ready[start] == task_id:
            self._start = start = start + 1
            # Taken entries are cut away in large pieces, so that taking the head costs nothing.
            if start == len(ready):
                ready.clear()
                self._start = 0
                self.head = NOBODY
                return
            self.head = ready[start]
            if start >= 512 and start * 2 > len(ready):
                del ready[:start]
                self._start = 0
            return
        place = bisect_left(ready, task_id, start)
        if place < len(ready) and ready[place] == task_id:
            del ready[place]
            return
        del self.delayed[bisect_left(self.delayed, task_id)]

    def remove_all(self, task_ids: set[TaskId]) -> None:
        self._ready = [task_id for task_id in self.ready if task_id not in task_ids]
        self._start = 0
        self.head = self._ready[0] if self._ready else NOBODY
        self.delayed = [task_id for task_id in self.delayed if task_id not in task_ids]
