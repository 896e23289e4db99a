"""Which worker runs a function call: a warm one, an idle one that loads the model, or none for now.

A worker runs one call at a time. Calls that take less than `LONG_US` also queue at a worker, so that it never waits for
the scheduler; longer ones wait in the scheduler's queue, where any worker can get them. A call that takes much longer
than usual is overdue: its worker gets no more calls, and those behind it are taken back when another worker is idle.

For a call with a model, a worker that has the model (or has begun to load it) goes first. If all of these are busy, the
expected wait is compared with the time that a load takes. An idle worker loads the model only if the wait is clearly
longer: by `PATIENCE` times the load, or `EVICTING_PATIENCE` times if another model must go. Otherwise two models that
take turns would evict each other with every call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dgpu.core.index.line import Line
from dgpu.core.model.app import App
from dgpu.core.model.ids import NO_TASK, LeaseId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import TaskStatus
from dgpu.core.model.worker import Worker
from dgpu.core.refusals import NoWorker, Refusal, WaitsForWarm, WorkersBusy
from dgpu.core.rules.retiring import retires_for
from dgpu.core.state import ClusterState

MAX_QUEUED: Final = 64  # calls at one worker
QUEUED_US: Final = 100_000  # of work at one worker
LONG_US: Final = 5_000_000
UNKNOWN_RUN_MS: Final = 60_000
UNKNOWN_LOAD_MS: Final = 10_000
PATIENCE: Final = 2
EVICTING_PATIENCE: Final = 4
OVERDUE: Final = 4  # times the usual time of a call
MIN_OVERDUE_MS: Final = 1_000
MIN_RUN_US: Final = 1_000  # with all that surrounds a call
START_MS: Final = 1_000  # a new worker helps only if the waiting calls take longer
MAX_FAILURES: Final = 3  # workers in a row that never became ready; then the waiting calls fail


class Seat(NamedTuple):
    lease: Lease
    worker: Worker
    queued: int
    overdue: bool


def depth(app: App) -> int:
    """How many calls a worker may have at once."""
    if not app.runs or app.run_us > LONG_US:
        return 1
    return max(2, min(MAX_QUEUED, QUEUED_US // max(1, app.run_us)))


def seats(state: ClusterState, app: App, at: int) -> list[Seat]:
    """The workers of an app that take calls, oldest first."""
    found: list[Seat] = []
    for task_id in state.crews.by_app[app.id].workers:
        worker = state.workers[task_id]
        if not worker.ready or worker.down or retires_for(state, worker):
            continue
        task = state.tasks[task_id]
        lease = state.leases.get(task.lease_id)
        if lease is None or lease.stopping or task.cancelling or not state.nodes[lease.node_id].takes_tasks:
            continue
        due_at = overdue_at(state, app, worker, lease.id)
        found.append(Seat(lease, worker, state.crews.queued(lease.id), due_at is not None and due_at <= at))
    return found


def overdue_at(state: ClusterState, app: App, worker: Worker, lease_id: LeaseId) -> int | None:
    """When the call that the worker runs is overdue. None: no call, or the usual time is unknown, or a model loads."""
    oldest = state.crews.oldest(lease_id)
    if oldest is None or not app.runs or any(model.loading for model in worker.models):
        return None
    return _began_at(state, oldest) + max(MIN_OVERDUE_MS, OVERDUE * run_ms(app))


def find_worker(state: ClusterState, line: Line, at: int) -> Lease | Refusal:
    """The lease of the worker that gets the next call of the line."""
    shape = line.shape
    app = state.apps[shape.app]
    ready = seats(state, app, at)
    if not ready:
        return no_worker(state, app)
    limit = depth(app)
    if shape.model:
        found = _for_model(state, line, app, ready, limit, at)
        if found is not None:
            return found
    free = [seat for seat in ready if _is_free(seat, limit)]
    if free:
        return min(free, key=_least_busy).lease
    return workers_busy(state, app, ready)


def no_worker(state: ClusterState, app: App) -> NoWorker:
    tasks = [state.tasks[task_id] for task_id in state.crews.by_app[app.id].workers]
    waiting = sum(task.status is TaskStatus.PENDING for task in tasks)
    retired = retiring(state, app)
    return NoWorker(
        starting=len(tasks) - waiting - len(retired),
        waiting=waiting,
        retires_for=retired[0] if retired else NO_TASK,
        failures=app.failures,
        error=app.error,
        eligible_at=app.eligible_at,
    )


def workers_busy(state: ClusterState, app: App, ready: list[Seat]) -> WorkersBusy:
    return WorkersBusy(
        workers=len(ready),
        limit=app.max_workers,
        starting=len(state.crews.by_app[app.id].workers) - len(ready) - len(retiring(state, app)),
        run_ms=run_ms(app),
        overdue=sum([seat.overdue for seat in ready]),
    )


def run_ms(app: App) -> int:
    return max(1, app.run_us // 1_000) if app.runs else UNKNOWN_RUN_MS


def load_ms(state: ClusterState, model: str) -> int:
    known = state.load_times.get(model)
    return UNKNOWN_LOAD_MS if known is None else known.load_ms


def workers_wanted(state: ClusterState, line: Line, at: int) -> int:
    """How many more workers the app needs for its waiting calls."""
    app = state.apps[line.shape.app]
    crew = state.crews.by_app[app.id]
    ready = seats(state, app, at)
    able = sum([not seat.overdue for seat in ready])
    staying = sum(not _is_leaving(state, state.workers[task_id]) for task_id in crew.workers)
    waiting = calls_waiting(line)
    if able and app.runs and waiting * max(MIN_RUN_US, app.run_us) // able < START_MS * 1_000:
        return 0
    starting = staying - len(ready) - len(retiring(state, app))
    return max(0, min(app.max_workers - staying, waiting - starting))


def retiring(state: ClusterState, app: App) -> list[TaskId]:
    """The waiting tasks for which workers of the app take no more calls."""
    return [
        task_id
        for worker in state.crews.by_app[app.id].workers
        if (task_id := retires_for(state, state.workers[worker]))
    ]


def calls_waiting(line: Line) -> int:
    """Calls of the line's app that could be placed, over all of its lines."""
    app_id = line.shape.app
    return sum(
        other.ready_count
        for known in line.account.shapes.values()
        if known.shape.app == app_id
        for other in known.lines.values()
    )


def look_again(state: ClusterState, line: Line, refusal: WaitsForWarm, at: int) -> None:
    """The expected wait grows while a call runs: the line is tried again when an idle worker might load the model."""
    state.crews.look_at(line.shape.app, at + max(1_000, refusal.patience_ms - refusal.wait_ms + 1))


# a model


def _for_model(
    state: ClusterState, line: Line, app: App, ready: list[Seat], limit: int, at: int
) -> Lease | Refusal | None:
    """None: no worker is warm and none is idle; any worker with a free slot is as good as another."""
    model = line.shape.model
    warm = [seat for seat in ready if is_warm(state, seat, model)]
    idle = [seat for seat in ready if not seat.queued and seat not in warm]
    best = min(warm, key=_least_busy, default=None)
    if best is not None and not best.queued:
        return best.lease
    cold = min(idle, key=lambda seat: _cost(state, seat), default=None)
    if best is None:
        return None if cold is None else cold.lease
    patience = patience_ms(state, model, evicts=cold is not None and _evicts(state, cold))
    wait = _wait_ms(state, app, line, warm, best, limit, at)
    if cold is not None and wait > patience:
        return cold.lease
    if _is_free(best, limit):
        return best.lease
    if cold is None:
        return workers_busy(state, app, ready)
    return WaitsForWarm(
        model=model, warm=len(warm), wait_ms=wait, load_ms=load_ms(state, model), patience_ms=patience
    )


def patience_ms(state: ClusterState, model: str, *, evicts: bool) -> int:
    return (EVICTING_PATIENCE if evicts else PATIENCE) * load_ms(state, model)


def is_warm(state: ClusterState, seat: Seat, model: str) -> bool:
    """A load that has begun counts, and so does a call that will begin one."""
    if any(each.name == model for each in seat.worker.models):
        return True
    return any(model_of(state, call) == model for call in state.crews.calls_of(seat.lease.id))


def model_of(state: ClusterState, call: LeaseId) -> str:
    return state.shapes[state.tasks[state.leases[call].task_id].shape_id].model


def _wait_ms(
    state: ClusterState, app: App, line: Line, warm: list[Seat], best: Seat, limit: int, at: int
) -> int:
    """Until a warm worker begins the call. A call that runs longer than usual is expected to run as long again."""
    ahead = best.queued
    if best.queued >= limit:
        ahead = -(-(sum(seat.queued for seat in warm) + line.ready_count) // len(warm))
    return max(run_ms(app) * ahead, elapsed_ms(state, best, at))


def elapsed_ms(state: ClusterState, seat: Seat, at: int) -> int:
    """Since the call that the worker runs began."""
    oldest = state.crews.oldest(seat.lease.id)
    return 0 if oldest is None else at - _began_at(state, oldest)


def _began_at(state: ClusterState, call: LeaseId) -> int:
    """A call that queued behind another one begins later than its slot was granted."""
    lease = state.leases[call]
    return state.tasks[lease.task_id].started_at or lease.granted_at


def missing_patience_ms(state: ClusterState, seat: Seat, idle: list[Seat], model: str, at: int) -> int:
    """How much longer a call that queues at the worker has to wait until an idle worker may take it; 0: now."""
    if not model or any(is_warm(state, each, model) for each in idle):
        return 0
    cold = min(idle, key=lambda each: _cost(state, each))
    patience = patience_ms(state, model, evicts=_evicts(state, cold))
    return max(0, patience - elapsed_ms(state, seat, at) + 1)


def _is_free(seat: Seat, limit: int) -> bool:
    return seat.queued < limit and not seat.overdue


def _least_busy(seat: Seat) -> tuple[bool, int, LeaseId]:
    return seat.overdue, seat.queued, seat.lease.id


def _evicts(state: ClusterState, seat: Seat) -> bool:
    return len(seat.worker.models) >= state.settings.max_models_per_gpu


def _cost(state: ClusterState, seat: Seat) -> tuple[bool, int, LeaseId]:
    """Workers with room for one more model first, then the one that has been idle the longest."""
    return _evicts(state, seat), seat.worker.idle_since, seat.lease.id


def _is_leaving(state: ClusterState, worker: Worker) -> bool:
    task = state.tasks[worker.task_id]
    lease = state.leases.get(task.lease_id)
    return task.cancelling or bool(worker.down) or (lease is not None and bool(lease.stopping))
