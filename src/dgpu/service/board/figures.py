"""The numbers above the map of a dashboard: counts, rates, waits, and a line of the last ten minutes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dgpu.core.events import Event, GangPlaced, TaskPlaced, TasksSubmitted
from dgpu.core.model.ids import TaskId
from dgpu.core.model.node import NodeStatus
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import tenant_of
from dgpu.service.access.principal import Tenants
from dgpu.service.event_texts import named_tasks
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.quota import quota_answer
from dgpu.service.views.views import Views
from dgpu.wire.alert_answers import AlertCounts
from dgpu.wire.board_answers import (
    BoardCounts,
    BoardFigures,
    BoardHistory,
    BoardPoint,
    BoardQuota,
    BoardTenant,
    BoardUse,
)
from dgpu.wire.wall_time import SHOWN

STEP_MS = 5_000
MAX_POINTS = 120  # ten minutes
MAX_WAITS = 4_096
WAITS_MS = 3_600_000
MAX_SEEDED = 20_000  # tasks in memory that a first look reads, the newest ones
RATE_MS = 60_000
MAX_GROUPS = 2_048  # in one check; of more, only the latest count
MAX_CHANGED = 256
MAX_TENANTS = 100
_MAX_TALLIES = 256


class ChangedTasks:
    """Numbers of tasks that changed since the last check: the first 256 of all, and of each tenant."""

    def __init__(self) -> None:
        self._noted: dict[str | None, dict[int, None]] = {}  # None: of all tenants
        self._full: set[str | None] = set()  # there are more of these
        self.is_partial = False  # some events are no longer known

    def note(self, task_ids: Iterable[int], tenant_id: str | None) -> None:
        self._add(None, task_ids)
        if tenant_id is not None:
            self._add(tenant_id, task_ids)

    def of(self, tenants: Tenants) -> tuple[list[int], bool]:
        """The numbers, and whether there are more."""
        keys: tuple[str | None, ...] = (None,) if tenants is None else tenants
        found = [task_id for key in keys for task_id in self._noted.get(key, ())]
        is_more = self.is_partial or len(found) > MAX_CHANGED or any(key in self._full for key in keys)
        return found[:MAX_CHANGED], is_more

    def _add(self, key: str | None, task_ids: Iterable[int]) -> None:
        noted = self._noted.setdefault(key, {})
        for task_id in task_ids:
            if len(noted) >= MAX_CHANGED and task_id not in noted:
                self._full.add(key)
                return
            noted[task_id] = None


class Traffic:
    """Facts from the latest groups: how long tasks waited, how many started, which tasks changed."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._seen_index = views.last_index
        self._waits: deque[tuple[int, int]] = deque(maxlen=MAX_WAITS)  # (when placed, waited)
        self._tallies: deque[tuple[int, int, int]] = deque(maxlen=_MAX_TALLIES)  # (at, started, ended)
        self._percentiles: tuple[int, int] | None = None  # None: not computed yet
        self._started = 0
        self.changed = ChangedTasks()

    def look(self, state: ClusterState, at_ms: int) -> None:
        """Call it at a committed point."""
        self.changed = ChangedTasks()
        events = list(self._new_events())
        if not self._tallies or self.changed.is_partial:
            self._seed(state, at_ms, events)
        for event in events:
            self._take(state, event)
        ended = state.next_task_id - 1 - state.waiting_count - state.running_count
        self._tallies.append((at_ms, self._started, ended))
        while len(self._tallies) > 2 and self._tallies[1][0] <= at_ms - RATE_MS:
            self._tallies.popleft()

    def _seed(self, state: ClusterState, at_ms: int, events: Sequence[Event]) -> None:
        """No dashboard was open, so earlier events were not seen. The tasks in memory know when they started."""
        counted = {event.task_id for event in events if isinstance(event, TaskPlaced | GangPlaced)}
        newest = itertools.islice(reversed(state.tasks.values()), MAX_SEEDED)
        found = [
            (task.started_at, max(0, task.started_at - task.created_at))
            for task in newest
            if task.attempt == 1 and task.started_at >= at_ms - WAITS_MS and task.id not in counted
        ]
        self._waits = deque(sorted(found), maxlen=MAX_WAITS)
        self._percentiles = None

    def per_minute(self) -> tuple[float, float]:
        """Started and finished."""
        (from_at, started, ended), (to_at, started_now, ended_now) = self._tallies[0], self._tallies[-1]
        minutes = max(to_at - from_at, 1_000) / 60_000
        return round((started_now - started) / minutes, 1), round((ended_now - ended) / minutes, 1)

    def waits(self, at_ms: int) -> tuple[int | None, int | None]:
        """p50 and p95 of the tasks that started within the last hour, at most the latest 4,096."""
        waits = self._waits
        while waits and waits[0][0] < at_ms - WAITS_MS:
            waits.popleft()
            self._percentiles = None
        if not waits:
            return None, None
        if self._percentiles is None:
            ordered = sorted(waited for _, waited in waits)
            self._percentiles = (ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100])
        return self._percentiles

    def _new_events(self) -> Iterable[Event]:
        recent, seen = self._views.recent, self._seen_index
        self._seen_index = self._views.last_index
        groups: list[CommittedGroup] = []
        for group in reversed(recent):
            if group.index <= seen:
                break
            if len(groups) == MAX_GROUPS:
                self.changed.is_partial = True
                break
            groups.append(group)
        else:
            self.changed.is_partial = bool(groups) and groups[-1].index > seen + 1
        return (event for group in reversed(groups) for event in group.events)

    def _take(self, state: ClusterState, event: Event) -> None:
        kind = type(event)
        if kind is TaskPlaced or kind is GangPlaced:
            self._started += 1
            task = state.tasks.get(event.task_id)  # type: ignore[attr-defined]
            attempt = event.attempt if isinstance(event, TaskPlaced) else event.ranks[0].attempt  # type: ignore[attr-defined]
            if task is not None and attempt == 1:
                self._waits.append((event.at, max(0, event.at - task.created_at)))
                self._percentiles = None
        if kind is TasksSubmitted:
            self._note_submitted(event)  # type: ignore[arg-type]
        elif (task_id := getattr(event, "task_id", None)) is not None:
            self.changed.note((task_id,), tenant_of(state, task_id))
        else:
            for each in named_tasks(event):
                self.changed.note((each,), tenant_of(state, each))

    def _note_submitted(self, event: TasksSubmitted) -> None:
        first_id = event.first_id
        for count, spec in event.entries:
            self.changed.note(range(first_id, first_id + count), spec.shape.tenant_id)
            first_id = TaskId(first_id + count)


def mean_util(samples: Iterable[GpuSample]) -> float | None:
    return mean([sample.utilization_percent for sample in samples])


def mean(values: Sequence[int | None]) -> float | None:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def counts(
    state: ClusterState, views: Views, traffic: Traffic, at_ms: int, *, util: float | None, browsers: int
) -> BoardCounts:
    pools = {"online": [0, 0], "batch": [0, 0]}
    for (_, pool, _), by_status in views.counts().items():
        numbers = pools[pool]
        numbers[0] += by_status.get(TaskStatus.PENDING, 0)
        numbers[1] += by_status.get(TaskStatus.RUNNING, 0)
    started, finished = traffic.per_minute()
    p50_ms, p95_ms = traffic.waits(at_ms)
    nodes = {status.value: 0 for status in NodeStatus}
    for node in state.nodes.values():
        nodes[node.status.value] += 1
    return BoardCounts(
        waiting=state.waiting_count,
        running=state.running_count,
        ended=state.next_task_id - 1 - state.waiting_count - state.running_count,
        pending={pool: numbers[0] for pool, numbers in pools.items()},
        running_in={pool: numbers[1] for pool, numbers in pools.items()},
        finished_per_min=finished,
        started_per_min=started,
        **{status.value: number for status, number in state.gpu_counts().items()},
        nodes=nodes,
        wait_p50_ms=p50_ms,
        wait_p95_ms=p95_ms,
        util=util,
        browsers=browsers,
    )


def use(state: ClusterState, at: int) -> BoardUse:
    """With all tenants."""
    answer = quota_answer(state, at)
    tenants = sorted(answer.tenants, key=lambda each: (-each.gpus_used, -each.waiting, each.tenant_id))
    limits = {str(name): tenant.max_gpus for name, tenant in state.tenants.items()}
    return BoardUse(
        pools={"online": answer.online, "batch": answer.batch},
        quota=BoardQuota(
            total_gpus=answer.total_gpus,
            online_percent=answer.online_percent,
            mode=answer.mode,
            reclaim=answer.reclaim,
        ),
        tenants=[
            BoardTenant(
                id=each.tenant_id,
                used=each.gpus_used,
                running=each.running,
                waiting=each.waiting,
                gpu_hours=round(each.gpu_hours_this_month, 2),
                share=round(each.share, 4),
                max_gpus=limits.get(each.tenant_id),
            )
            for each in tenants
        ],
        tenants_more=0,
    )


def figures_for(known: BoardFigures, tenants: Tenants, alerts: AlertCounts | None) -> BoardFigures:
    """The figures for readers of these tenants."""
    seen = known.tenants
    if tenants is not None:
        seen = [each for each in seen if each.id in tenants]
    more = max(0, len(seen) - MAX_TENANTS)
    return replace(known, tenants=seen[:MAX_TENANTS], tenants_more=more, alerts=alerts)


def history(points: Sequence[BoardPoint]) -> BoardHistory:
    return BoardHistory(
        step_ms=STEP_MS,
        at_ms=[SHOWN.wall_ms(point.at_ms) for point in points],
        util=[point.util for point in points],
        waiting=[point.waiting for point in points],
        running=[point.running for point in points],
        wait_p50_ms=[point.wait_p50_ms for point in points],
        finished_per_min=[point.finished_per_min for point in points],
    )
