"""The index of waiting tasks: their lines, by shape and time class. `beds` holds which line is next in order, and which
lines sleep.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from dgpu.core.index.account import Accounts, PoolUse, new_pools
from dgpu.core.index.bed import Bed
from dgpu.core.index.beds import Beds
from dgpu.core.index.line import Ageing, KnownShape, Line
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import ShapeId, TaskId
from dgpu.core.model.task import Pool, Shape, Task
from dgpu.core.rules.durations import time_class

LONG_QUEUE: Final = 100
_FEW: Final = 16  # removed one by one; more are cheaper in one sweep
_SLACK: Final = 64


class Queue:
    __slots__ = (
        "_accounts",
        "_ageing",
        "_array_lines",
        "_arrays",
        "_back_off_heap",
        "_by_shape",
        "back_off",
        "beds",
        "count",
        "pools",
        "shapes",
    )

    def __init__(self, tasks: Mapping[TaskId, Task], accounts: Accounts, ageing_ms: int = 0) -> None:
        self._accounts = accounts
        self.pools: dict[Pool | None, PoolUse] = new_pools()
        self.shapes: dict[ShapeId, KnownShape] = {}
        self._by_shape: dict[Shape, ShapeId] = {}
        self._arrays: dict[TaskId, int] = {}  # arrays with a limit: number of running tasks, if any
        self.count = 0  # waiting tasks
        self.back_off: dict[TaskId, int] = {}  # end of the back-off
        self._back_off_heap: list[tuple[int, TaskId]] = []
        self._array_lines: dict[TaskId, dict[Line, None]] = {}
        self._ageing = Ageing(tasks, ageing_ms)
        self.beds = Beds()

    def copy(self, tasks: Mapping[TaskId, Task], accounts: Accounts) -> Queue:
        """The same lines sleep in the copy."""
        twin = Queue(tasks, accounts, self._ageing.point_ms)
        twin._arrays = self._arrays.copy()
        twin._by_shape = self._by_shape.copy()
        twin.count = self.count
        twin.back_off = self.back_off.copy()
        twin._back_off_heap = self._back_off_heap.copy()
        for pool, use in self.pools.items():
            twin.pools[pool].used_milli, twin.pools[pool].limit_milli = use.used_milli, use.limit_milli
        beds = self.beds.copy_empty(twin.beds)
        for shape_id, known in self.shapes.items():
            copy = twin._know(shape_id, known.shape)
            copy.uses = known.uses
            for line in known.lines.values():
                twin._copy_line(line, copy, beds[line.bed])
        twin.beds.offer_open()
        return twin

    def _copy_line(self, line: Line, known: KnownShape, bed: Bed) -> None:
        copied = known.lines[line.lasts_ms] = line.copy(known, self._ageing, bed)
        bed.lines[copied] = None
        if copied.head:
            copied.pool.ready[copied] = None
        if line.shape.array_id:
            self._array_lines.setdefault(line.shape.array_id, {})[copied] = None

    def discard(self) -> None:
        """Breaks reference cycles: lines, beds, shapes, pools and accounts refer to each other. Without this, a fork
        with a copy of every task stays in memory until the next garbage collection, which is rare.
        """
        for known in self.shapes.values():
            known.lines.clear()
            known.account.shapes.clear()
        for pool in self.pools.values():
            pool.ready.clear()
            pool.other = None
        self.beds.discard()
        self._array_lines.clear()

    def facts(self) -> tuple[object, ...]:
        """For comparison with a queue derived from scratch."""
        return self._by_shape, self._arrays, self.count

    # shapes and lines

    def lines(self) -> Iterator[Line]:
        for known in self.shapes.values():
            yield from known.lines.values()

    def know(self, shape_id: ShapeId, shape: Shape) -> KnownShape:
        """Adds a new shape."""
        known = self._know(shape_id, shape)
        self._by_shape[shape] = shape_id
        return known

    def find(self, shape: Shape) -> KnownShape | None:
        shape_id = self._by_shape.get(shape)
        return None if shape_id is None else self.shapes[shape_id]

    def forget(self, shape_id: ShapeId) -> None:
        """No task has this shape any more."""
        known = self.shapes.pop(shape_id)
        del self._by_shape[known.shape]
        for line in list(known.lines.values()):
            self._close(line)
        self._accounts.close(known.account, shape_id)

    def line_of(self, task: Task) -> Line:
        """The line in which a task waits."""
        return self.shapes[task.shape_id].lines[time_class(task)]

    def _know(self, shape_id: ShapeId, shape: Shape) -> KnownShape:
        account = self._accounts.open(shape.tenant_id)
        pool = self.pools[shape.pool if shape.gpus else None]
        known = self.shapes[shape_id] = KnownShape(shape_id, shape, account, pool)
        account.shapes[shape_id] = known
        return known

    def _open(self, known: KnownShape, lasts_ms: int) -> Line:
        line = known.lines.get(lasts_ms)
        if line is not None:
            return line
        line = known.lines[lasts_ms] = self.beds.new_line(known, lasts_ms, self._ageing)
        shape = known.shape
        if shape.array_id:
            self._array_lines.setdefault(shape.array_id, {})[line] = None
            line.array_full = self.running_of(shape.array_id) >= shape.array_limit
        return line

    def _close(self, line: Line) -> None:
        """The line has no task any more."""
        del line.known.lines[line.lasts_ms]
        line.pool.ready.pop(line, None)
        array_id = line.shape.array_id
        if array_id:
            del self._array_lines[array_id][line]
            if not self._array_lines[array_id]:
                del self._array_lines[array_id]
        self.beds.leave(line)

    # tasks

    def extend(self, known: KnownShape, tasks: Mapping[TaskId, Task], *, apart: bool = False) -> None:
        """Adds new tasks of one time class, younger than all others. `apart`: they are held or wait for other tasks."""
        self.count += len(tasks)
        line = self._open(known, time_class(next(iter(tasks.values()))))
        if apart:
            line.apart.extend(tasks)
        else:
            line.extend(list(tasks))
            self._list(line)

    def park(self, task: Task) -> None:
        """A waiting task may not be placed until `unpark`. A back-off continues after that."""
        line = self.line_of(task)
        if self.back_off.pop(task.id, None) is None:
            line.remove(task.id)
            insort(line.apart, task.id)
            self._list(line)

    def unpark(self, task: Task) -> None:
        line = self.line_of(task)
        del line.apart[bisect_left(line.apart, task.id)]
        self.count -= 1
        self.add(task)

    def add(self, task: Task, *, apart: bool = False) -> None:
        line = self._open(self.shapes[task.shape_id], time_class(task))
        self.count += 1
        if apart:
            insort(line.apart, task.id)
        elif task.eligible_at:
            insort(line.apart, task.id)
            self._delay(task.id, task.eligible_at)
        else:
            line.add(task.id)
            self._list(line)

    def remove(self, task: Task) -> None:
        """The task no longer waits."""
        line = self.line_of(task)
        line.remove(task.id)
        self.count -= 1
        if self.back_off:
            self.back_off.pop(task.id, None)
        self._shrunk(line)

    def remove_many(self, tasks: Iterable[Task]) -> None:
        by_line: dict[Line, list[Task]] = {}
        for task in tasks:
            by_line.setdefault(self.line_of(task), []).append(task)
        for line, some in by_line.items():
            if len(some) <= _FEW:
                for task in some:
                    self.remove(task)
                continue
            line.remove_all({task.id for task in some})
            self.count -= len(some)
            for task in some:
                self.back_off.pop(task.id, None)
            self._shrunk(line)

    def _shrunk(self, line: Line) -> None:
        if not line.head:
            line.pool.ready.pop(line, None)
            if not len(line):
                self._close(line)

    # arrays

    def running_of(self, array_id: TaskId) -> int:
        """Running tasks of an array with a limit."""
        return self._arrays.get(array_id, 0)

    def count_running(self, shape: Shape, change: int) -> None:
        """A task of an array with a limit started or ended. The lines of the array have no head while it runs its
        maximum.
        """
        array_id = shape.array_id
        running = self._arrays.pop(array_id, 0) + change
        if running:
            self._arrays[array_id] = running
        full = running >= shape.array_limit
        if full is not (running - change >= shape.array_limit):
            for line in self._array_lines.get(array_id, ()):
                line.set_array_full(full)
                self._list(line)

    # time

    def age_by(self, point_ms: int) -> None:
        if point_ms == self._ageing.point_ms:
            return
        self._ageing.point_ms = point_ms
        self.beds.reorder()

    def advance(self, at: int) -> None:
        """Tasks whose back-off has ended join their lines."""
        heap = self._back_off_heap
        while heap and heap[0][0] <= at:
            eligible_at, task_id = heappop(heap)
            if self.back_off.get(task_id) != eligible_at:
                continue
            del self.back_off[task_id]
            line = self.line_of(self._ageing.tasks[task_id])
            del line.apart[bisect_left(line.apart, task_id)]
            line.add(task_id)
            self._list(line)

    @property
    def next_eligible_at(self) -> int | None:
        heap = self._back_off_heap
        while heap and self.back_off.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def delay_until(self, task_id: TaskId, eligible_at: int) -> None:
        """The end of a delay moved. A task that is also held gets the new time when it is released."""
        if task_id in self.back_off:
            self._delay(task_id, eligible_at)

    def _delay(self, task_id: TaskId, eligible_at: int) -> None:
        self.back_off[task_id] = eligible_at
        heappush(self._back_off_heap, (eligible_at, task_id))
        if len(self._back_off_heap) > 2 * len(self.back_off) + _SLACK:
            self._back_off_heap = [(until, each) for each, until in self.back_off.items()]
            heapify(self._back_off_heap)

    # the pass

    def note_reserved(self, task: Task, change: int) -> None:
        """A task of the line got or lost a reservation, so other rules may apply to the line."""
        line = self.line_of(task)
        line.reserved += change
        self.beds.wake_line(line)

    def reorder(self) -> None:
        """Moves lines ahead whose tenants' shares fell below the share of others."""
        for account in self._accounts.take_dropped():
            for known in account.shapes.values():
                for line in known.lines.values():
                    self.beds.move_up(line)

    @property
    def is_uniform(self) -> bool:
        """A long queue with a single demand: no task can run ahead of another because of its size."""
        if self.count <= LONG_QUEUE:
            return False
        first: Demand | None = None
        for pool in self.pools.values():
            for line in pool.ready:
                if first is not None and line.demand != first:
                    return False
                first = line.demand
        return first is not None

    # leaves

    def _list(self, line: Line) -> None:
        """Called after the head of the line changed."""
        if line.head:
            line.pool.ready[line] = None
            self.beds.list_line(line)
        else:
            line.pool.ready.pop(line, None)
