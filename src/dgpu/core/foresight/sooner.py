"""The smallest changes that would start a waiting task now. Each change is tried on its own state with the same code,
so each result is true at that moment. The number of tries is bounded.

A change to the demand of the task is tried as a user would make it: the task is cancelled and submitted again, so it is
behind all other tasks of its priority. Another cancel restores the state of the tries, which is much cheaper than
another copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from dgpu.core.commands import (
    CancelTasks,
    ChangePriority,
    Command,
    ReleaseTasks,
    ResumeNode,
    RunPass,
    SetQuota,
    SubmitTasks,
)
from dgpu.core.decide.schedule import pass_due, run_pass
from dgpu.core.events import (
    Event,
    GangPlaced,
    TaskPlaced,
    TasksReserved,
    TasksSubmitted,
    TaskStopRequested,
)
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import Explanation, explain_task
from dgpu.core.foresight.fork import discard, make, on_fork
from dgpu.core.foresight.forward import end_task
from dgpu.core.index.limits import quota_of, schedulable
from dgpu.core.model.ids import NO_TASK, NodeId, TaskId, task_name
from dgpu.core.model.quota import MILLION, OTHER_POOL, QuotaMode
from dgpu.core.model.task import (
    MEMORY_STEP_MB,
    RUNS_CONTAINERS,
    Outcome,
    Pool,
    Task,
    TaskSpec,
    TaskStatus,
    in_units,
)
from dgpu.core.rejections import Rejection
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MAX_TRIES: Final = 48
MAX_TOLD: Final = 6
_MAX_RESUMED: Final = 4
_MAX_AWAITED: Final = 16
_HIGHEST_PRIORITY: Final = 100
_PERCENT_PPM: Final = MILLION // 100
_APART: Final = {
    "begin_time",
    "held",
    "dependency",
    "dependency_failed",
    "array_limit",
    "back_off",
}  # no other shape would help


class Change(msgspec.Struct, frozen=True, kw_only=True):
    change: str  # the field or the order
    detail: str  # plain text, no full stop
    facts: dict[str, int | str] = {}
    task_ids: tuple[TaskId, ...] = ()  # running tasks that the text names


def sooner(state: ClusterState, task_id: TaskId, at: int) -> tuple[Change, ...]:
    """Each change alone would start the task. Does not change the state."""
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.PENDING or state.shapes[task.shape_id].app:
        return ()
    trials = _Trials(state, task, at)
    if pass_due(state) and trials.starts_after():
        return ()
    found = tuple(islice(_search(trials, explain_task(state, task, at)), MAX_TOLD))
    trials.close()
    return found


def _search(trials: _Trials, told: Explanation) -> Iterator[Change]:
    codes = {blocker.code for blocker in told.blockers}
    if "held" in codes and trials.starts_after(ReleaseTasks(task_ids=(trials.task.id,))):
        yield Change(change="release", detail="if it were released")
    if not codes & _APART:
        yield from _other_shapes(trials, codes)
        if trials.fits:  # otherwise no change of order or quota helps at once
            yield from _other_order(trials, told)
    if "draining" in codes:
        yield from _resumed(trials)
    if codes & _OF_POOLS and trials.fits:
        yield from _other_quota(trials)
    if not codes & _APART and told.nearest is not None:
        yield from _awaited(trials, told.nearest.node_id)


_OF_POOLS: Final = {"pool_quota", "quota"}


class _Trials:
    def __init__(self, state: ClusterState, task: Task, at: int) -> None:
        self.state = state
        self.task = task
        self.at = at
        self.shape = state.shapes[task.shape_id]
        self.left = MAX_TRIES
        demand = state.queue.shapes[task.shape_id].demand
        # For a gang this is not checked, so its tries may find nothing.
        self.fits = demand.nodes > 1 or state.rooms.find(demand) is not None
        self._fork: ClusterState | None = None

    def starts_after(self, *commands: Command) -> bool:
        """Uses its own copy, because other tasks may start, too."""

        def starts(fork: ClusterState) -> bool:
            return not isinstance(make(fork, commands, self.at), Rejection) and self.starts_on(fork)

        return self._may_try() and on_fork(self.state, starts)

    def starts_on(self, fork: ClusterState) -> bool:
        run_pass(fork, RunPass(at=self.at))
        return fork.tasks[self.task.id].status is TaskStatus.RUNNING

    def starts_with(self, **changes: Any) -> tuple[str, ...]:
        """The GPU models that the task would get with another shape; without GPUs, the node. Empty: no start."""
        if not self._may_try():
            return ()
        fork = self._copy()
        spec = TaskSpec(
            shape=replace(self.shape, array_id=NO_TASK, array_limit=0, **changes),
            detail=self.task.detail,
            timeout_ms=self.task.timeout_ms or None,
            max_retries=self.task.max_retries,
            restart=self.task.restart,
            allocation=self.task.allocation,
        )
        decided = execute(fork, SubmitTasks(at=self.at, entries=((1, spec),)))
        if isinstance(decided, Rejection) or not isinstance(decided[0], TasksSubmitted):
            return ()
        task_id = decided[0].first_id
        events = run_pass(fork, RunPass(at=self.at))
        task = fork.tasks[task_id]
        got: tuple[str, ...] = ()
        if task.status is TaskStatus.RUNNING:
            got = tuple(sorted({fork.gpus[gpu_id].model for gpu_id in task.gpu_ids})) or (task.node_id or "",)
        self._put_back(fork, task_id, events)
        return got

    def _may_try(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def _copy(self) -> ClusterState:
        if self._fork is None:
            self._fork = self.state.fork()
            execute(self._fork, CancelTasks(at=self.at, task_ids=(self.task.id,)))
            run_pass(self._fork, RunPass(at=self.at))
        return self._fork

    def _put_back(self, fork: ClusterState, task_id: TaskId, events: tuple[Event, ...]) -> None:
        execute(fork, CancelTasks(at=self.at, task_ids=(task_id,)))
        task = fork.tasks[task_id]
        if task.status is TaskStatus.RUNNING:
            end_task(fork, task, self.at, Outcome.STOPPED)
        others = any(
            isinstance(event, TaskStopRequested | TasksReserved)
            or (isinstance(event, TaskPlaced | GangPlaced) and event.task_id != task_id)
            for event in events
        )
        if others or not fork.tasks[task_id].status.is_final:
            self.close()

    def close(self) -> None:
        if self._fork is not None:
            discard(self._fork)
            self._fork = None


# changes of the demand


class _Number(NamedTuple):
    """A number in the demand of a task. A smaller one may suffice."""

    name: str
    field: str  # of a shape
    step: int
    one: str
    several: str
    codes: frozenset[str] = frozenset()  # tried only if one of these blocks the task; empty: always


_OF_GPUS: Final = (
    _Number("gpu_count", "gpus", 1, "GPU", "GPUs"),
    _Number("nodes", "nodes", 1, "node", "nodes"),
    _Number(
        "gpu_memory_mb",
        "gpu_memory_mb",
        MEMORY_STEP_MB,
        "MB on each GPU",
        "MB on each GPU",
        frozenset({"gpu_memory", "gpu_share"}),
    ),
)
_OF_HOSTS: Final = (
    _Number("cpus", "cpus_milli", 1_000, "cpu", "cpus", frozenset({"cpus"})),
    _Number("ram_mb", "ram_mb", MEMORY_STEP_MB, "MB of ram", "MB of ram", frozenset({"ram"})),
)


def _other_shapes(trials: _Trials, codes: set[str]) -> Iterator[Change]:
    shape = trials.shape
    for number in _OF_GPUS:
        yield from _less(trials, codes, number)
    if shape.gpu_models and (models := trials.starts_with(gpu_models=())):
        named = ", ".join(models)
        words = f"on {named} instead of {', '.join(shape.gpu_models)}"
        facts: dict[str, int | str] = {"gpu_model": named, "instead_of": ", ".join(shape.gpu_models)}
        yield Change(change="gpu_model", detail=words, facts=facts)
    needed = tuple(each for each in shape.constraints if each == RUNS_CONTAINERS)  # of its image
    if shape.constraints != needed and trials.starts_with(constraints=needed):
        yield Change(change="constraints", detail="without its constraints")
    for number in _OF_HOSTS:
        yield from _less(trials, codes, number)
    if shape.gpus and trials.fits and trials.starts_with(pool=OTHER_POOL[shape.pool]):
        other = OTHER_POOL[shape.pool].value
        yield Change(change="pool", detail=f"in the pool {other}", facts={"pool": other})


def _less(trials: _Trials, codes: set[str], number: _Number) -> Iterator[Change]:
    """The largest smaller number with which the task would start. 0 is not tried: it means that the resource is not
    counted.
    """
    asked: int = getattr(trials.shape, number.field)
    if not asked or (number.codes and not codes & number.codes):
        return
    steps = _largest(
        (asked - 1) // number.step,
        lambda steps: bool(trials.starts_with(**{number.field: steps * number.step})),
    )
    if steps:
        in_milli = number.field == "cpus_milli"
        less = steps if in_milli else steps * number.step
        unit = number.one if less == 1 else number.several
        before = in_units(asked) if in_milli else asked
        yield _asking(number.name, less, before, f"with {less} {unit} instead of {before}")


def _asking(field: str, number: int, before: int | str, words: str) -> Change:
    return Change(change=field, detail=words, facts={field: number, "instead_of": before})


def _largest(most: int, works: Callable[[int], bool]) -> int:
    """A number that works implies that all smaller ones work; 0: none works."""
    return most - bisect_left(range(most, 0, -1), True, key=works)


# changes around the task


def _other_order(trials: _Trials, told: Explanation) -> Iterator[Change]:
    if not told.ahead_total:
        return
    state = trials.state
    first = state.shapes[state.tasks[queue(state, limit=1)[0]].shape_id].priority
    for priority in sorted({first, min(_HIGHEST_PRIORITY, first + 1)}):
        if priority <= trials.shape.priority:
            continue
        if trials.starts_after(ChangePriority(priority=priority, task_ids=(trials.task.id,))):
            words = f"with priority {priority} instead of {trials.shape.priority}"
            yield _asking("priority", priority, trials.shape.priority, words)
            return


def _resumed(trials: _Trials) -> Iterator[Change]:
    drained = sorted(
        node.id for node in trials.state.nodes.values() if node.draining and not node.offline_since
    )
    for node_id in drained[:_MAX_RESUMED]:
        if trials.starts_after(ResumeNode(node_id=node_id)):
            words = f"if node {node_id}, which is being drained, were resumed"
            yield Change(change="resume", detail=words, facts={"node": node_id})
            return


def _other_quota(trials: _Trials) -> Iterator[Change]:
    state, pool = trials.state, trials.shape.pool
    gpus = schedulable(state)
    own = quota_of(state).milli(pool) // 1_000
    more = _smallest(
        own + 1, gpus, lambda part: trials.starts_after(SetQuota(online_ppm=_ppm(pool, part, gpus)))
    )
    if more is not None:
        ppm = _ppm(pool, more, gpus)
        percent = (ppm if pool is Pool.ONLINE else MILLION - ppm) // _PERCENT_PPM
        words = f"if the pool {pool.value} had {percent} % of the GPUs"
        facts: dict[str, int | str] = {"online_ppm": ppm, "pool": pool.value, "percent": percent}
        yield Change(change="quota", detail=words, facts=facts)
    if state.quota.mode is QuotaMode.STRICT and trials.starts_after(SetQuota(mode=QuotaMode.BORROW)):
        words = "if the quota were not strict: GPUs that the other pool does not use could be borrowed"
        yield Change(change="quota_mode", detail=words, facts={"mode": QuotaMode.BORROW.value})


def _ppm(pool: Pool, part: int, gpus: int) -> int:
    """The part of the online pool that gives this pool at least this many GPUs, in whole percents."""
    own = min(MILLION, -(-part * 100 // gpus) * _PERCENT_PPM)
    return own if pool is Pool.ONLINE else MILLION - own


def _smallest(least: int, most: int, works: Callable[[int], bool]) -> int | None:
    """A number that works implies that all larger ones work."""
    if least > most or not works(most):
        return None
    return least + bisect_left(range(least, most), True, key=works)


def _awaited(trials: _Trials, node_id: NodeId) -> Iterator[Change]:
    """The tasks on the node that lacks the least; tasks with the earliest end come first."""
    state = trials.state
    running = {lease.task_id: state.tasks[lease.task_id] for lease in state.node_leases(node_id)}
    by_end = sorted(running.values(), key=_limit_at)[:_MAX_AWAITED]

    def enough(fork: ClusterState) -> int:
        for number, task in enumerate(by_end, 1):
            end_task(fork, fork.tasks[task.id], trials.at)
            if trials.starts_on(fork):
                return number
        return 0

    number = on_fork(state, enough)
    if number:
        task_ids = tuple(each.id for each in by_end[:number])
        names = [task_name(each) for each in task_ids]
        yield Change(
            change="wait",
            detail=awaited_in_words(", ".join(names), node_id, number),
            facts={"tasks": ", ".join(names), "number": number, "node": node_id},
            task_ids=task_ids,
        )


def awaited_in_words(tasks: str, node_id: str, number: int) -> str:
    return f"when {tasks} on node {node_id} {'is' if number == 1 else 'are'} over"


def _limit_at(task: Task) -> tuple[bool, int, TaskId]:
    """Tasks without a time limit come last."""
    return (not task.timeout_ms, task.started_at + task.timeout_ms, task.id)
