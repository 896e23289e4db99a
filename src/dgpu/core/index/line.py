"""A line: the waiting tasks of one shape, by age. A crowd: the lines of one demand, which fit or fail together.

With ageing, waiting counts as priority: all tasks gain a point in the same time, so who stands before whom never
changes. The level of a task is its priority less the number of such times that had passed when it was submitted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dgpu.core.index.account import Account
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import ShapeId, TaskId
from dgpu.core.model.task import WHOLE_MILLI, Shape, Task

if TYPE_CHECKING:
    from dgpu.core.index.lane import Lane
    from dgpu.core.index.turns import Order

NOBODY: Final = TaskId(0)
NO_SHAPE: Final = ShapeId(0)
PART: Final = -1  # the size of a demand for a part of one GPU
SLACK: Final = 64  # stale entries tolerated in a heap beyond its live ones

# The place of a line in the order: highest level first, then the tenant with the least share (see standings), then the
# oldest head.
# (-level, standing, head, shape). Who is listed is known by the very same object: the compiler keeps it as it is only
# where it does not know the length.
Turn: TypeAlias = tuple[Any, ...]
LAST_OF_ALL: Final[Turn] = (1 << 62, 0, NOBODY, NO_SHAPE)
CrowdKey: TypeAlias = tuple[Any, ...]  # (demand, pool); tasks without GPUs are of no pool here


class Claim:
    """What a task takes of its pool's quota and its tenant's limits. Nobody changes it."""

    __slots__ = ("memory_mb", "milli")

    def __init__(self, milli: int, memory_mb: int) -> None:
        self.milli = milli
        self.memory_mb = memory_mb


class Ageing:
    """What the lines of an index share: when tasks came, and how long a point takes. 0: priority alone counts."""

    __slots__ = ("point_ms", "tasks")

    def __init__(self, tasks: Mapping[TaskId, Task], point_ms: int) -> None:
        self.tasks = tasks
        self.point_ms = point_ms


class Crowd:
    """Awake: its first task in order may fit. Blocked: it fits nowhere, unless in a room of which its lane knows that it
    has more to give since. Short: it was found to claim more than its pool had left, and stands among those who claim as much.
    """

    __slots__ = (
        "_turns",
        "beside",
        "blocked",
        "claim",
        "demand",
        "key",
        "lane",
        "lines",
        "listed_as",
        "listed_in",
        "milli",
        "refused_at",
        "refused_kept",
        "size",
        "takes_part_of_a_card",
        "turned_away",
    )

    def __init__(self, key: CrowdKey, lane: Lane) -> None:
        self.key = key
        self.lane = lane
        demand: Demand = key[0]
        self.demand = demand
        gpus = demand.gpus * demand.nodes
        self.milli = gpus * demand.share_milli  # for a share: what it holds at least
        self.claim = Claim(self.milli, gpus * demand.gpu_memory_mb)  # see rules.admission.claim_of
        self.takes_part_of_a_card = (
            demand.share_milli < WHOLE_MILLI
        )  # what it counts for is known only with the card
        self.size = (
            PART if self.takes_part_of_a_card else demand.gpus
        )  # those too large for a room are not tried
        self.lines: dict[ShapeId, Line] = {}
        self.listed_in: Order | None = None
        self.listed_as: Turn | None = None  # the turn that this order knows it by
        self.blocked = False
        self.refused_at = 0  # after so many wakes, see Lane
        self.refused_kept = (
            -1
        )  # nobody here is over within so many ms, or may have what is kept for other reasons
        self.beside = False  # blocked, but for what is kept for reservations
        self.turned_away = False  # its pool had not enough left for it on the card that it would have got
        self._turns: list[Turn] = []  # heap, stale ones too

    def list_line(self, line: Line) -> bool:
        """After its turn changed: does the crowd come earlier now? A line listed with an earlier turn is put right when
        that comes.
        """
        turn = line.turn()
        if turn is None or (line.listed is not None and line.listed <= turn):
            return False
        line.listed = turn
        heappush(self._turns, turn)
        if len(self._turns) > 2 * len(self.lines) + SLACK:
            self.relist()
        return self.listed_as is None or turn < self.listed_as

    def unlist(self) -> None:
        """No order knows it any more, and nobody asks whether it fits: so nobody knows when it has a turn again."""
        self.listed_in = self.listed_as = None
        self.blocked = False

    def relist(self) -> None:
        self._turns = []
        for line in self.lines.values():
            line.listed = line.turn()
            if line.listed is not None:
                self._turns.append(line.listed)
        heapify(self._turns)

    def first(self) -> Turn | None:
        turns = self._turns
        while turns:
            turn = turns[0]
            line = self.lines.get(turn[3])
            if line is None or line.listed is not turn:
                heappop(turns)
                continue
            if line.head == turn[2] and line.account.standing == turn[1] and not line.barred:
                return turn
            line.listed = right = line.turn()
            if right is None:
                heappop(turns)
                continue
            heapreplace(turns, right)
            if turns[0] is right:
                return right
        return None


class Line:
    """Tasks that back off, are held or wait for others are apart: nobody waits behind them. A line that is shut (its
    array runs as many as it may) has no head. One that is barred waits for its tenant.
    """

    __slots__ = (
        "_ready",
        "_start",
        "account",
        "ageing",
        "barred",
        "crowd",
        "delayed",
        "head",
        "listed",
        "passed_over",
        "priority",
        "shape",
        "shape_id",
        "shut",
        "uses",
    )

    def __init__(
        self, shape_id: ShapeId, shape: Shape, crowd: Crowd, account: Account, ageing: Ageing
    ) -> None:
        self.shape_id = shape_id
        self.shape = shape
        self.priority = shape.priority
        self.crowd = crowd
        self.account = account
        self.ageing = ageing
        self.shut = False
        self.barred = False
        self.uses = 0  # tasks of this shape in the state, whatever their status
        self.head = NOBODY  # the oldest that is ready
        self.listed: Turn | None = None  # the turn that its crowd knows it by
        self.delayed: list[TaskId] = []  # sorted
        self.passed_over = (0, NOBODY)  # up to this task, none is over within so many ms
        self._ready: list[TaskId] = []  # sorted from `_start` on; what is before was taken
        self._start = 0

    def copy(self, crowd: Crowd, account: Account, ageing: Ageing) -> Line:
        twin = Line(self.shape_id, self.shape, crowd, account, ageing)
        twin.shut = self.shut
        twin.uses = self.uses
        twin.delayed = self.delayed.copy()
        twin._ready = self.ready
        twin.passed_over = self.passed_over
        twin.head = self.head
        return twin

    def __len__(self) -> int:
        return len(self._ready) - self._start + len(self.delayed)

    @property
    def ready_count(self) -> int:
        """Those that may be placed, as far as the line knows."""
        return 0 if self.shut else len(self._ready) - self._start

    def turn(self) -> Turn | None:
        head = self.head
        if not head or self.barred:
            return None
        level = self.level(head) if self.ageing.point_ms else self.priority
        return (-level, self.account.standing, head, self.shape_id)

    @property
    def ready(self) -> list[TaskId]:
        return self._ready[self._start :]

    def ready_from(self, task_id: TaskId, most: int) -> list[TaskId]:
        """Those that may be placed, by age, from this one on."""
        if self.shut:
            return []
        start = bisect_left(self._ready, task_id, self._start)
        return self._ready[start : start + most]

    def level(self, task_id: TaskId) -> int:
        point_ms = self.ageing.point_ms
        if not point_ms:
            return self.priority
        return self.priority - self.ageing.tasks[task_id].created_at // point_ms

    def above(self, level: int) -> int:
        """How many tasks of this line stand above a level. They are the oldest ones."""
        if not self.ageing.point_ms:
            return len(self) if self.priority > level else 0

        def below(task_id: TaskId) -> bool:
            return self.level(task_id) <= level

        ready = bisect_left(self._ready, True, self._start, key=below) - self._start
        return ready + bisect_left(self.delayed, True, key=below)

    def shut_if(self, full: bool) -> None:
        self.shut = full
        self._find_head()

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

    def extend(self, task_ids: list[TaskId], lasts_ms: int = 0) -> None:
        """New tasks are younger than all others. `lasts_ms`: how long they may run, if that is certain."""
        ready, (within_ms, upto) = self._ready, self.passed_over
        if self._start == len(ready):
            within_ms, upto = lasts_ms, NOBODY
        elif upto < ready[-1]:
            lasts_ms = 0  # those before them were not looked at yet
        if lasts_ms:
            self.passed_over = (min(within_ms, lasts_ms - 1), task_ids[-1])
        ready.extend(task_ids)
        self._find_head()

    def add(self, task_id: TaskId) -> None:
        self.passed_over = (0, NOBODY)
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
            self._start = start = start + 1
            # Taken entries are cut away in large pieces, so that taking the head costs nothing.
            if start == len(ready):
                ready.clear()
                self._start = 0
                self.head = NOBODY
                return
            self.head = NOBODY if self.shut else ready[start]
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
        self.delayed = [task_id for task_id in self.delayed if task_id not in task_ids]
        self._find_head()

    def set_apart(self, task_ids: list[TaskId]) -> None:
        """New tasks, younger than all others, that may not be placed yet."""
        self.delayed.extend(task_ids)

    def _find_head(self) -> None:
        is_empty = self._start == len(self._ready)
        self.head = NOBODY if self.shut or is_empty else self._ready[self._start]
