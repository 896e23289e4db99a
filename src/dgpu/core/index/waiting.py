"""The index of waiting tasks: who is next in order, and who is worth a try."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from dgpu.core.index.account import Accounts
from dgpu.core.index.giving import FEW_ROOMS
from dgpu.core.index.lane import Lane
from dgpu.core.index.line import SLACK, Ageing, Crowd, CrowdKey, Line, Turn
from dgpu.core.index.room import Room, whole
from dgpu.core.index.rooms import Rooms
from dgpu.core.model.demand import demand_of
from dgpu.core.model.ids import NodeId, ShapeId, TaskId
from dgpu.core.model.task import Pool, Shape, Task

_FEW: Final = 16  # removals done one by one; more are cheaper in one sweep


class Waiting:
    __slots__ = (
        "_ageing",
        "_array_lines",
        "_delayed_heap",
        "_each_lane",
        "accounts",
        "arrays",
        "barred",
        "by_shape",
        "count",
        "delayed_until",
        "lanes",
        "last_reserved",
        "lines",
        "overtaken",
        "pool_lanes",
    )

    def __init__(self, tasks: Mapping[TaskId, Task], accounts: Accounts, ageing_ms: int = 0) -> None:
        self.accounts = accounts
        self.barred: dict[
            ShapeId, Line
        ] = {}  # lines that wait for their tenant, or for the guarantee of another
        self.lanes: dict[Pool | None, Lane] = {pool: Lane(pool) for pool in (None, *Pool)}
        online, batch = self.lanes[Pool.ONLINE], self.lanes[Pool.BATCH]
        online.other, batch.other = batch, online
        self._each_lane = tuple(self.lanes.values())
        self.pool_lanes = (online, batch)
        self._ageing = Ageing(tasks, ageing_ms)
        self.arrays: dict[TaskId, int] = {}  # with a limit: how many of their tasks run; 0 is left out
        self._array_lines: dict[TaskId, dict[ShapeId, Line]] = {}  # one for each priority of its tasks
        self.lines: dict[ShapeId, Line] = {}
        self.by_shape: dict[Shape, ShapeId] = {}
        self.count = 0
        self.delayed_until: dict[TaskId, int] = {}
        self._delayed_heap: list[tuple[int, TaskId]] = []
        self.last_reserved: Turn | None = (
            None  # whoever stands before it may want a reservation; None: nobody may
        )
        self.overtaken = False  # somebody does, and no pass has seen it

    def copy(self, tasks: Mapping[TaskId, Task], accounts: Accounts) -> Waiting:
        """What fits nowhere fits nowhere in the copy either; all other crowds of it are awake."""
        twin = Waiting(tasks, accounts, self._ageing.point_ms)
        twin.arrays = self.arrays.copy()
        for shape_id, line in self.lines.items():
            crowd = twin._crowd(line.crowd.key)
            account = accounts.open(line.shape.tenant_id)
            copied = line.copy(crowd, account, twin._ageing)
            crowd.lines[shape_id] = twin.lines[shape_id] = account.lines[shape_id] = copied
            if line.shape.array_id:
                twin._array_lines.setdefault(line.shape.array_id, {})[shape_id] = copied
        twin.by_shape = self.by_shape.copy()
        twin.count = self.count
        twin.delayed_until = self.delayed_until.copy()
        twin._delayed_heap = self._delayed_heap.copy()
        for lane in self.lanes.values():
            twin.lanes[lane.pool].used_milli = lane.used_milli
            twin.lanes[lane.pool].limit_milli = lane.limit_milli
            for crowd in lane.crowds.values():
                if crowd.blocked and not lane.is_pending(crowd):
                    twin.block(twin.lanes[lane.pool].crowds[crowd.key])
        for line in twin.lines.values():
            twin._list(line)
        for lane in self.lanes.values():
            for crowd in lane.crowds.values():
                twin.lanes[lane.pool].crowds[crowd.key].beside = crowd.blocked and crowd.beside
        twin.last_reserved, twin.overtaken = self.last_reserved, self.overtaken
        return twin

    # shapes

    def open_line(self, shape_id: ShapeId, shape: Shape) -> Line:
        crowd = self._crowd((demand_of(shape), shape.pool if shape.gpus else None))
        account = self.accounts.open(shape.tenant_id)
        line = Line(shape_id, shape, crowd, account, self._ageing)
        self.lines[shape_id] = crowd.lines[shape_id] = account.lines[shape_id] = line
        self.by_shape[shape] = shape_id
        if shape.array_id:
            self._array_lines.setdefault(shape.array_id, {})[shape_id] = line
            line.shut = self.arrays.get(shape.array_id, 0) >= shape.array_limit
        return line

    def close_line(self, shape_id: ShapeId) -> None:
        line = self.lines.pop(shape_id)
        del self.by_shape[line.shape]
        array_id = line.shape.array_id
        if array_id:
            del self._array_lines[array_id][shape_id]
            if not self._array_lines[array_id]:
                del self._array_lines[array_id]
        self.barred.pop(shape_id, None)
        self.accounts.close(line.account, shape_id)
        crowd, lane = line.crowd, line.crowd.lane
        lane.ready.pop(shape_id, None)
        del crowd.lines[shape_id]
        if not crowd.lines:
            lane.forget(crowd)
        elif crowd.listed_as is not None and crowd.listed_as[3] == shape_id:
            crowd.listed_as = None
            lane.wake(crowd)

    # tasks

    def extend(self, line: Line, task_ids: list[TaskId], lasts_ms: int = 0, kept_ms: int = 0) -> None:
        """New tasks, younger than all others. `lasts_ms`: how long they may run, if that is certain; `kept_ms`: who
        takes longer delays every reservation.
        """
        self.count += len(task_ids)
        crowd = line.crowd
        if crowd.blocked and line.head and kept_ms < lasts_ms and kept_ms <= crowd.refused_kept:
            turn, last = line.turn(), self.last_reserved
            if last is None or turn is None or turn >= last:
                # They stand behind one that fits nowhere, and none of them may run ahead.
                line.extend(task_ids, lasts_ms)
                crowd.refused_kept = min(crowd.refused_kept, lasts_ms - 1)
                return
        has_turn = line.head and crowd.listed_in is not None and not crowd.blocked
        line.extend(task_ids, lasts_ms)
        if has_turn:  # and keeps it, for its head is the same: most of a replay
            crowd.refused_kept = -1
        else:
            self._list(line)

    def set_apart(self, line: Line, task_ids: list[TaskId]) -> None:
        """New tasks that are held or wait for others."""
        line.set_apart(task_ids)
        self.count += len(task_ids)

    def park(self, shape_id: ShapeId, task_id: TaskId) -> None:
        """A task that waits may not be placed until `unpark`. One that backs off goes on doing so then."""
        line = self.lines[shape_id]
        if self.delayed_until.pop(task_id, None) is None:
            line.remove(task_id)
            insort(line.delayed, task_id)
            self._list(line)

    def unpark(self, shape_id: ShapeId, task_id: TaskId, eligible_at: int) -> None:
        line = self.lines[shape_id]
        del line.delayed[bisect_left(line.delayed, task_id)]
        self.count -= 1
        self.add(shape_id, task_id, eligible_at)

    def add(self, shape_id: ShapeId, task_id: TaskId, eligible_at: int, *, apart: bool = False) -> None:
        line = self.lines[shape_id]
        self.count += 1
        if apart:
            insort(line.delayed, task_id)
        elif eligible_at:
            self._delay(line, task_id, eligible_at)
        else:
            line.add(task_id)
            self._list(line)

    def remove(self, shape_id: ShapeId, task_id: TaskId) -> None:
        self.take(self.lines[shape_id], task_id)

    def take(self, line: Line, task_id: TaskId) -> None:
        """It waits no more."""
        line.remove(task_id)
        if not line.head:
            line.crowd.lane.ready.pop(line.shape_id, None)
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
            line = self.lines[shape_id]
            line.remove_all(task_ids)
            if not line.head:
                line.crowd.lane.ready.pop(shape_id, None)
            self.count -= len(task_ids)
            for task_id in task_ids:
                self.delayed_until.pop(task_id, None)

    # arrays

    def count_running(self, shape: Shape, change: int) -> None:
        """A task of an array with a limit began or ended: its lines are shut while it runs as many as it may."""
        array_id = shape.array_id
        running = self.arrays.pop(array_id, 0) + change
        if running:
            self.arrays[array_id] = running
        full = running >= shape.array_limit
        if full is not (running - change >= shape.array_limit):
            for line in self._array_lines[array_id].values():
                line.shut_if(full)
                self._list(line)

    # time

    def age_by(self, point_ms: int) -> None:
        if point_ms == self._ageing.point_ms:
            return
        self._ageing.point_ms = point_ms
        for lane in self.lanes.values():
            lane.start_over()

    def advance(self, at: int) -> None:
        """Those whose back-off is over join their lines again."""
        heap = self._delayed_heap
        while heap and heap[0][0] <= at:
            eligible_at, task_id = heappop(heap)
            if self.delayed_until.get(task_id) != eligible_at:
                continue
            del self.delayed_until[task_id]
            line = self.lines[self._ageing.tasks[task_id].shape_id]
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
        return any(lane.any_awake for lane in self.lanes.values())

    def refuse_whole(self) -> bool:
        """Nothing is idle. Was somebody who needs a whole GPU to be tried again, for the sake of reservations?"""
        lanes = [lane for lane in self.lanes.values() if lane.pool is not None and lane.woken]
        if not any(lane.wakes_whole() for lane in lanes if not lane.closed):
            return False
        for lane in lanes:
            lane.refuse_whole()
        return True

    def reorder(self) -> None:
        """Lines of tenants whose share fell below that of others stand further in front now."""
        dropped = self.accounts.dropped
        if not dropped:
            return
        for account in dropped.values():
            standing = account.standing
            for line in account.lines.values():
                listed = line.listed
                if listed is not None and listed[1] <= standing:
                    continue  # it was listed when the tenant stood no further back: it is put right when it comes up
                if line.head and line.crowd.list_line(line):
                    line.crowd.lane.wake(line.crowd)
        dropped.clear()

    def bar(self, line: Line) -> None:
        """Its tenant may not have more now, or may not take what is kept for another."""
        line.barred = True
        self.barred[line.shape_id] = line

    def unbar(self, line: Line) -> None:
        line.barred = False
        del self.barred[line.shape_id]
        self._list(line)

    def wake_all(self) -> None:
        for lane in self.lanes.values():
            lane.unblock_all()

    def wake_fitting(self, rooms: Rooms) -> None:
        """Only a room that has more to give than before can let in what was refused before."""
        improved = rooms.improved
        plans = rooms.plans
        seen: dict[NodeId, Room] = {}
        if plans:
            most = rooms.most_leases
            seen = {node_id: whole(room, most) for node_id, room in improved.items()}
        for lane in self._each_lane:
            if lane.refused:
                lane.improved |= improved
                lane.looked = False
                if plans:
                    lane.wake_planned(seen, rooms)
                elif lane.woken:
                    lane.woken.clear()
        improved.clear()

    def first_awake(self, rooms: Rooms) -> Line | None:
        """The line that is next in order, of those worth a try."""
        best: Turn | None = None
        lines = self.lines
        for lane in self._each_lane:
            if lane.closed:
                continue
            if not lane.looked and len(lane.improved) > FEW_ROOMS:
                lane.ask_all(rooms)
            if lane.short or (lane.order.turns and lane.order.may_precede(best)):
                turn = lane.first_awake(lines, rooms) if lane.short else lane.order.first(lines)
                if turn is not None and (best is None or turn < best):
                    best = turn
            if lane.improved or lane.woken:
                turn = lane.first_let_in(lines, rooms, best, self.last_reserved)
                if turn is not None:
                    best = turn
        return None if best is None else lines[best[3]]

    def block(self, crowd: Crowd, *, beside: bool = False) -> None:
        """Nothing of this demand fits now; `beside`: but for what is kept for reservations."""
        crowd.beside = beside
        crowd.lane.block(crowd)

    def block_whole(self) -> None:
        """No GPU is idle: nobody who needs a whole one is worth a try."""
        for lane in self.lanes.values():
            if lane.pool is None:
                continue
            for crowd in lane.take_whole(self.lines):
                self.block(crowd)

    # leaves

    def _crowd(self, key: CrowdKey) -> Crowd:
        lane = self.lanes[key[1]]
        crowd = lane.crowds.get(key)
        if crowd is None:
            crowd = lane.crowds[key] = Crowd(key, lane)
        return crowd

    def _list(self, line: Line) -> None:
        """After its turn changed."""
        line.crowd.refused_kept = -1
        if line.crowd.blocked:
            self._note_blocked(line)
        lane = line.crowd.lane
        if line.head:
            lane.ready[line.shape_id] = line
        else:
            lane.ready.pop(line.shape_id, None)
        line.crowd.list_line(line)
        lane.wake(line.crowd)

    def _note_blocked(self, line: Line) -> None:
        """Its demand fits nowhere. Yet somebody in it may be short enough to run ahead of a reservation, or stand so far
        in front as to get one.
        """
        if line.crowd.beside:
            line.crowd.lane.unblock(line.crowd)
        elif self.last_reserved is not None:
            turn = line.turn()
            if turn is not None and turn < self.last_reserved and not line.crowd.lane.is_woken(line.crowd):
                self.overtaken = True

    def blocked_lines(self) -> list[tuple[Turn, Line]]:
        """Lines of demands that fit nowhere now, with a task that no rule of its own keeps back. Some may be going to be
        tried again: see Lane.is_woken.
        """
        return [
            (turn, line)
            for lane in self.lanes.values()
            for crowd in lane.crowds.values()
            if crowd.blocked
            for line in crowd.lines.values()
            if (turn := line.turn()) is not None
        ]

    def _delay(self, line: Line, task_id: TaskId, eligible_at: int) -> None:
        insort(line.delayed, task_id)
        self.delayed_until[task_id] = eligible_at
        heappush(self._delayed_heap, (eligible_at, task_id))
        if len(self._delayed_heap) > 2 * len(self.delayed_until) + SLACK:
            self._delayed_heap = [
                entry for entry in self._delayed_heap if self.delayed_until.get(entry[1]) == entry[0]
            ]
            heapify(self._delayed_heap)
