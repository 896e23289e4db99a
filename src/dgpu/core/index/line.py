"""A line: the waiting tasks of one shape and one time class, by age. Every rule treats its tasks as interchangeable.

With ageing, waiting counts as priority. All tasks gain a point in the same time, so their order never changes. The
level of a task is its priority minus the points that all tasks had gained by the time of its submit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from dgpu.core.index.account import Account
from dgpu.core.model.demand import Demand, demand_of
from dgpu.core.model.ids import NO_TASK, ShapeId, TaskId
from dgpu.core.model.task import WHOLE_MILLI, Shape, Task

if TYPE_CHECKING:
    from dgpu.core.index.account import PoolUse
    from dgpu.core.index.bed import Bed

# The place of a line in the order: highest level first, then the tenant with the least share (see standings), then the
# oldest head: (-level, standing, head). No two lines have the same head. The type has no fixed length for the compiler:
# otherwise the tuple would be rebuilt at each comparison.
Turn: TypeAlias = tuple[int, ...]
FIRST_OF_ALL: Final[Turn] = (-(1 << 62), 0, 0)


class Claim:
    """What a task takes of its pool's quota and its tenant's limits. Treated as frozen; one is created per grant."""

    __slots__ = ("memory_mb", "milli")

    def __init__(self, milli: int, memory_mb: int) -> None:
        self.milli = milli
        self.memory_mb = memory_mb

    def plus(self, other: Claim) -> Claim:
        return Claim(self.milli + other.milli, self.memory_mb + other.memory_mb)


def claim_of(shape: Shape) -> Claim:
    """Exact for whole GPUs, a lower bound for a share: with a memory demand, its claim depends on the GPU."""
    gpus = shape.gpus * shape.nodes
    return Claim(gpus * shape.share_milli, gpus * shape.gpu_memory_mb)


class Ageing:
    """Shared by all lines of a queue: the tasks, and the waiting time per point. 0: only priority counts."""

    __slots__ = ("lines", "point_ms", "tasks")

    def __init__(self, tasks: Mapping[TaskId, Task], point_ms: int) -> None:
        self.tasks = tasks
        self.point_ms = point_ms
        self.lines = 0  # number of lines created


class KnownShape:
    """A shape of at least one task in any status, with all facts derived from the shape."""

    __slots__ = ("account", "app", "claim", "demand", "is_part", "lines", "pool", "shape", "shape_id", "uses")

    def __init__(self, shape_id: ShapeId, shape: Shape, account: Account, pool: PoolUse) -> None:
        self.shape_id = shape_id
        self.shape = shape
        self.app = shape.app  # read for every try: compiled, a field of `shape` is slower
        self.account = account
        self.pool = pool
        self.demand: Demand = demand_of(shape)
        self.claim = claim_of(shape)
        self.is_part = self.demand.share_milli < WHOLE_MILLI  # takes a part of one GPU
        self.uses = 0  # tasks of this shape
        self.lines: dict[int, Line] = {}  # by `lasts_ms`


class Line:
    """Tasks that back off, are held or wait for other tasks are `apart`: they block no other task. While its array runs
    its maximum of tasks, a line has no head.
    """

    __slots__ = (
        "_ready",
        "_start",
        "account",
        "ageing",
        "apart",
        "array_full",
        "bed",
        "claim",
        "demand",
        "head",
        "known",
        "lasts_ms",
        "listed",
        "number",
        "pool",
        "priority",
        "reserved",
    )

    def __init__(self, known: KnownShape, lasts_ms: int, ageing: Ageing, bed: Bed) -> None:
        self.known = known
        self.lasts_ms = (
            lasts_ms  # the longest time from the start of a task until its GPUs are free; see durations
        )
        self.ageing = ageing
        ageing.lines += 1
        self.number = ageing.lines  # orders heap entries with the same turn
        self.bed = bed  # where the line sleeps; `Beds.awake` if awake
        self.listed: Turn | None = None  # the turn under which its bed lists it
        self.account = known.account
        self.claim = known.claim
        self.demand = known.demand
        self.pool = known.pool
        self.priority = known.shape.priority
        self.array_full = False
        self.head = NO_TASK  # the oldest task that may be placed
        self.reserved = 0  # tasks of it that hold a reservation
        self.apart: list[TaskId] = []  # sorted
        self._ready: list[TaskId] = []  # sorted from `_start` on; earlier entries were taken
        self._start = 0

    def copy(self, known: KnownShape, ageing: Ageing, bed: Bed) -> Line:
        twin = Line(known, self.lasts_ms, ageing, bed)
        twin.array_full = self.array_full
        twin.apart = self.apart.copy()
        twin._ready = self.ready
        twin.head, twin.reserved = self.head, self.reserved
        return twin

    def __len__(self) -> int:
        return len(self._ready) - self._start + len(self.apart)

    @property
    def shape(self) -> Shape:
        return self.known.shape

    @property
    def ready_count(self) -> int:
        """The number of tasks that may be placed."""
        return 0 if self.array_full else len(self._ready) - self._start

    @property
    def ready(self) -> list[TaskId]:
        return self._ready[self._start :]

    def turn(self) -> Turn | None:
        return self.turn_of(self.head) if self.head else None

    def stands_at(self, standing: int, head: int) -> bool:
        """Its turn is still this one. A head has one level."""
        return head == self.head and standing == self.account.standing

    def turn_of(self, task_id: TaskId) -> Turn:
        level = self.level(task_id) if self.ageing.point_ms else self.priority
        return (-level, self.account.standing, task_id)

    def precedes(self, other: Line) -> bool:
        """Its head comes before the head of the other line. Compares as turns do, without creating them: with
        reservations, a grant asks this of every line that waits for quota.
        """
        level, level_of_other = self.level(self.head), other.level(other.head)
        if level != level_of_other:
            return level > level_of_other
        standing, standing_of_other = self.account.standing, other.account.standing
        return self.head < other.head if standing == standing_of_other else standing < standing_of_other

    def first_not_in(self, task_ids: Container[TaskId]) -> TaskId:
        """The oldest task that may be placed and is not in `task_ids`."""
        if not self.array_full:
            for place in range(self._start, len(self._ready)):
                if self._ready[place] not in task_ids:
                    return self._ready[place]
        return NO_TASK

    def level(self, task_id: TaskId) -> int:
        point_ms = self.ageing.point_ms
        if not point_ms:
            return self.priority
        return self.priority - self.ageing.tasks[task_id].created_at // point_ms

    # the order of the queue

    def above(self, level: int) -> int:
        """The number of tasks of this line with a higher level. They are its oldest tasks."""
        if not self.ageing.point_ms:
            return len(self) if self.priority > level else 0

        def below(task_id: TaskId) -> bool:
            return self.level(task_id) <= level

        ready = bisect_left(self._ready, True, self._start, key=below) - self._start
        return ready + bisect_left(self.apart, True, key=below)

    def rank(self, task_id: TaskId) -> int:
        """The number of older tasks in this line."""
        ready = bisect_left(self._ready, task_id, self._start) - self._start
        return ready + bisect_left(self.apart, task_id)

    def after(self, task_id: TaskId) -> Iterator[TaskId]:
        """The younger tasks by age, with the tasks apart. The line must not change during the iteration."""
        ready, apart = self._ready, self.apart
        one, other = bisect_left(ready, task_id + 1, self._start), bisect_left(apart, task_id + 1)
        while one < len(ready) or other < len(apart):
            if other == len(apart) or (one < len(ready) and ready[one] < apart[other]):
                yield ready[one]
                one += 1
            else:
                yield apart[other]
                other += 1

    # changes

    def set_array_full(self, full: bool) -> None:
        self.array_full = full
        self._find_head()

    def extend(self, task_ids: list[TaskId]) -> None:
        """New tasks are younger than all others."""
        self._ready.extend(task_ids)
        self._find_head()

    def add(self, task_id: TaskId) -> None:
        ready = self._ready
        if self._start == len(ready) or task_id > ready[-1]:
            ready.append(task_id)
        elif self._start and task_id < ready[self._start]:
            self._start -= 1
            ready[self._start] = task_id
        else:
            insort(ready, task_id, self._start)
        self._find_head()

    def remove(self, task_id: TaskId) -> None:
        ready, start = self._ready, self._start
        if start < len(ready) and ready[start] == task_id:
            self._take_first()
            return
        place = bisect_left(ready, task_id, start)
        if place < len(ready) and ready[place] == task_id:
            del ready[place]
        else:
            del self.apart[bisect_left(self.apart, task_id)]

    def remove_all(self, task_ids: set[TaskId]) -> None:
        self._ready = [task_id for task_id in self.ready if task_id not in task_ids]
        self._start = 0
        self.apart = [task_id for task_id in self.apart if task_id not in task_ids]
        self._find_head()

    def _take_first(self) -> None:
        """Taken entries are removed in large blocks, so that taking the head is cheap."""
        ready = self._ready
        self._start += 1
        if self._start == len(ready):
            ready.clear()
            self._start = 0
        elif self._start >= 512 and self._start * 2 > len(ready):
            del ready[: self._start]
            self._start = 0
        self._find_head()

    def _find_head(self) -> None:
        is_empty = self._start == len(self._ready)
        self.head = NO_TASK if self.array_full or is_empty else self._ready[self._start]
