"""The index of waiting tasks: who is next in order, and who is worth a try."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from dgpu.core.ids import ShapeId, TaskId
from dgpu.core.line import SLACK, Crowd, Line, Turn
from dgpu.core.policy.fit import Demand, demand_of
from dgpu.core.rooms import Rooms
from dgpu.core.task import Shape

_FEW = 16  # removals done one by one; more are cheaper in one sweep


class Waiting:
    __slots__ = (
        "_blocked",
        "_crowds",
        "_delayed_heap",
        "_order",
        "by_shape",
        "count",
        "delayed_until",
        "lines",
    )

    def __init__(self) -> None:
        self.lines: dict[ShapeId, Line] = {}
        self.by_shape: dict[Shape, ShapeId] = {}
        self.count = 0
        self.delayed_until: dict[TaskId, int] = {}
        self._delayed_heap: list[tuple[int, TaskId, ShapeId]] = []
        self._crowds: dict[Demand, Crowd] = {}
        self._order: list[Turn] = []  # heap: the first turns of crowds awake, stale ones too
        self._blocked: dict[int, dict[Demand, Crowd]] = {}  # by number of GPUs

    def copy(self) -> Waiting:
        """All crowds of the copy are awake: it knows nothing of what was tried."""
        twin = Waiting()
        for shape_id, line in self.lines.items():
            crowd = twin._crowd(line.crowd.demand)
            crowd.lines[shape_id] = twin.lines[shape_id] = line.copy(crowd)
        twin.by_shape = self.by_shape.copy()
        twin.count = self.count
        twin.delayed_until = self.delayed_until.copy()
        twin._delayed_heap = self._delayed_heap.copy()
        for line in twin.lines.values():
            twin._list(line)
        return twin

    # shapes

    def open_line(self, shape_id: ShapeId, shape: Shape) -> Line:
        crowd = self._crowd(demand_of(shape))
        line = self.lines[shape_id] = crowd.lines[shape_id] = Line(shape_id, shape, crowd)
        self.by_shape[shape] = shape_id
        return line

    def close_line(self, shape_id: ShapeId) -> None:
        line = self.lines.pop(shape_id)
        del self.by_shape[line.shape]
        crowd = line.crowd
        del crowd.lines[shape_id]
        if not crowd.lines:
            del self._crowds[crowd.demand]
            self._blocked.get(crowd.demand.gpus, {}).pop(crowd.demand, None)
        elif crowd.awake_as is not None and crowd.awake_as[2] == shape_id:
            crowd.awake_as = None
            self._wake(crowd)

    # tasks

    def extend(self, line: Line, task_ids: list[TaskId]) -> None:
        line.extend(task_ids)
        self.count += len(task_ids)
        self._list(line)

    def add(self, shape_id: ShapeId, task_id: TaskId, eligible_at: int) -> None:
        line = self.lines[shape_id]
        self.count += 1
        if eligible_at:
            self._delay(line, task_id, eligible_at)
        else:
            line.add(task_id)
            self._list(line)

    def remove(self, shape_id: ShapeId, task_id: TaskId) -> None:
        self.lines[shape_id].remove(task_id)
        self.count -= 1
        if self.delayed_until:
            self.delayed_until.pop(task_id, None)

    def remove_many(self, tasks: Iterable[tuple[ShapeId, TaskId]]) -> None:
        by_shape: dict[ShapeId, set[TaskId]] = {}
        for shape_id, task_id in tasks:
            by_shape.setdefault(shape_id, set()).add(task_id)
        for shape_id, task_ids in by_shape.items():
            if len(task_ids) <= _FEW:
                for task_id in task_ids:
                    self.remove(shape_id, task_id)
                continue
            self.lines[shape_id].remove_all(task_ids)
            self.count -= len(task_ids)
            for task_id in task_ids:
                self.delayed_until.pop(task_id, None)

    # time

    def advance(self, at: int) -> None:
        """Those whose back-off is over join their lines again."""
        heap = self._delayed_heap
        while heap and heap[0][0] <= at:
            eligible_at, task_id, shape_id = heappop(heap)
            if self.delayed_until.get(task_id) != eligible_at:
                continue
            del self.delayed_until[task_id]
            line = self.lines[shape_id]
            del line.delayed[bisect_left(line.delayed, task_id)]
            line.add(task_id)
            self._list(line)

    @property
    def next_eligible_at(self) -> int | None:
        heap = self._delayed_heap
        while heap and self.delayed_until.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    # the pass

    @property
    def any_awake(self) -> bool:
        return bool(self._order)

    def wake_all(self) -> None:
        for blocked in self._blocked.values():
            for crowd in blocked.values():
                crowd.blocked = False
                self._wake(crowd)
        self._blocked.clear()

    def wake_fitting(self, rooms: Rooms) -> None:
        """Only a room that has more to give than before can let in what was refused before."""
        if not rooms.improved:
            return
        most_idle = -1
        for room in rooms.improved.values():
            if room.ready and len(room.idle) > most_idle:
                most_idle = len(room.idle)
        rooms.improved.clear()
        for gpus, blocked in self._blocked.items():
            if gpus > most_idle:
                continue
            for demand in [demand for demand in blocked if rooms.best(demand) is not None]:
                crowd = blocked.pop(demand)
                crowd.blocked = False
                self._wake(crowd)

    def first_awake(self) -> tuple[Crowd, TaskId] | None:
        """The crowd that is next in order, and its first task."""
        order = self._order
        while order:
            turn = order[0]
            line = self.lines.get(turn[2])
            if line is None or line.crowd.awake_as != turn:
                heappop(order)
                continue
            crowd = line.crowd
            first = crowd.first()
            if first == turn:
                return crowd, turn[1]
            crowd.awake_as = first
            if first is None:
                heappop(order)
            else:
                heapreplace(order, first)
        return None

    def block(self, crowd: Crowd) -> None:
        """Nothing of this demand fits now."""
        crowd.awake_as = None
        crowd.blocked = True
        self._blocked.setdefault(crowd.demand.gpus, {})[crowd.demand] = crowd

    # leaves

    def _crowd(self, demand: Demand) -> Crowd:
        crowd = self._crowds.get(demand)
        if crowd is None:
            crowd = self._crowds[demand] = Crowd(demand)
        return crowd

    def _list(self, line: Line) -> None:
        """After its head changed."""
        line.crowd.list_line(line)
        self._wake(line.crowd)

    def _wake(self, crowd: Crowd) -> None:
        turn = None if crowd.blocked else crowd.first()
        if turn is None or (crowd.awake_as is not None and crowd.awake_as <= turn):
            return
        crowd.awake_as = turn
        heappush(self._order, turn)
        if len(self._order) > 2 * len(self._crowds) + SLACK:
            self._order = [each.awake_as for each in self._crowds.values() if each.awake_as is not None]
            heapify(self._order)

    def _delay(self, line: Line, task_id: TaskId, eligible_at: int) -> None:
        insort(line.delayed, task_id)
        self.delayed_until[task_id] = eligible_at
        heappush(self._delayed_heap, (eligible_at, task_id, line.shape_id))
        if len(self._delayed_heap) > 2 * len(self.delayed_until) + SLACK:
            self._delayed_heap = [
                entry for entry in self._delayed_heap if self.delayed_until.get(entry[1]) == entry[0]
            ]
            heapify(self._delayed_heap)
