"""Function calls and workers for tests."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from building import do, run_pass, shape, spec
from dgpu.core.commands import (
    CallResult,
    ReportFinished,
    ReportStarted,
    ReportWorkers,
    SubmitTasks,
    WorkerReport,
)
from dgpu.core.model.app import App
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome, Restart, TaskDetail, WorkerSetup
from dgpu.core.model.worker import LoadedModel
from dgpu.core.state import ClusterState


def app(name: str = "job", *, max_workers: int = 8, **more) -> App:
    detail = TaskDetail(command=("python3", "-m", "dgpu.worker"), worker=WorkerSetup(app_id=name))
    worker = spec(**more)
    return App(
        id=name,
        spec=replace(
            worker,
            detail=msgspec.json.encode(detail),
            timeout_ms=0,
            max_retries=0,
            restart=Restart.NEVER,
            worker_of=name,
        ),
        max_workers=max_workers,
    )


def call(of: App | None = None, *, count: int = 1, model: str = "", max_retries: int = 3) -> SubmitTasks:
    of = of or app()
    asked = of.spec.shape
    mine = shape(0, tenant=asked.tenant_id, pool=asked.pool, priority=asked.priority, model=model)
    detail = TaskDetail(entrypoint="job:run", model_name=model)
    entry = spec(0, timeout_ms=60_000, max_retries=max_retries)
    entry = replace(entry, shape=replace(mine, app=of.id), detail=msgspec.json.encode(detail))
    return SubmitTasks(entries=((count, entry),), apps=(of,))


def ready(state: ClusterState, lease_id: int, *models: str, loading: bool = False, load_ms: int = 0) -> None:
    """The worker under this lease has started."""
    if not state.leases[LeaseId(lease_id)].started:
        do(state, ReportStarted(lease_id=LeaseId(lease_id)))
    loaded = tuple(LoadedModel(name=name, loading=loading, load_ms=load_ms) for name in models)
    report = WorkerReport(lease_id=LeaseId(lease_id), ready=True, models=loaded)
    do(state, ReportWorkers(workers=(report,)))


def returned(lease_id: int, outcome: Outcome = Outcome.EXITED, **more) -> ReportFinished:
    result = CallResult(result=b"\xc0", encoding="msgpack", size=1, ran_ms=more.pop("ran_ms", 0))
    return ReportFinished(lease_id=LeaseId(lease_id), outcome=outcome, returned=result, **more)


def with_workers(state: ClusterState) -> ClusterState:
    """All workers of the waiting calls get GPUs, as far as there are some, and are ready."""
    run_pass(state)
    for task_id in list(state.workers):
        if lease_id := state.tasks[task_id].lease_id:
            ready(state, lease_id)
    return state
