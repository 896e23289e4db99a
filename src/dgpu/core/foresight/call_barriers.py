"""Why a function call waits, in words: its app has no worker that takes it now."""

from __future__ import annotations

from dgpu.core.foresight.blockers import Blocker, blocker, plural
from dgpu.core.index.line import Line
from dgpu.core.model.ids import task_name
from dgpu.core.model.lease import Lease
from dgpu.core.refusals import NoWorker, Refusal, WaitsForWarm, WorkersBusy
from dgpu.core.rules.workers import find_worker
from dgpu.core.state import ClusterState


def call_barriers(state: ClusterState, line: Line, at: int) -> list[Blocker]:
    found = find_worker(state, line, at)
    return [] if isinstance(found, Lease) else [blocker_of_call(found, at)]


def blocker_of_call(refusal: Refusal, at: int) -> Blocker:
    match refusal:
        case NoWorker():
            return _no_worker(refusal, at)
        case WorkersBusy(workers=workers, limit=limit, starting=starting, run_ms=run_ms, overdue=overdue):
            detail = f"{plural(workers, 'worker')} of at most {limit} {'is' if workers == 1 else 'are'} busy"
            if starting:
                detail += f", {starting} more {'was' if starting == 1 else 'were'} requested"
            detail += f"; a call takes about {_seconds(run_ms)} s"
            if overdue:
                detail += f", much longer now on {overdue} of them"
            return blocker(
                "workers_busy",
                detail,
                workers=workers,
                limit=limit,
                starting=starting,
                run_ms=run_ms,
                overdue=overdue,
            )
        case WaitsForWarm(model=model, warm=warm, wait_ms=wait_ms, load_ms=load_ms):
            detail = (
                f"{plural(warm, 'worker')} with {model} loaded {'is' if warm == 1 else 'are'} busy for about "
                f"{_seconds(wait_ms)} s; an idle worker would take {_seconds(load_ms)} s to load it, and does so from "
                f"a wait of {_seconds(refusal.patience_ms)} s on"
            )
            return blocker(
                "waits_for_warm",
                detail,
                model=model,
                workers=warm,
                wait_ms=wait_ms,
                load_ms=load_ms,
                patience_ms=refusal.patience_ms,
            )
        case _:
            raise AssertionError(f"{type(refusal).__name__} has no words here")


def _no_worker(refusal: NoWorker, at: int) -> Blocker:
    left_ms = max(0, refusal.eligible_at - at)
    if refusal.failures and left_ms:
        detail = (
            f"{plural(refusal.failures, 'worker')} in a row ended before it was ready ({refusal.error}); the next one "
            f"starts in {-(-left_ms // 1_000)} s"
        )
    elif refusal.starting:
        detail = (
            f"{plural(refusal.starting, 'worker')} for it {'is' if refusal.starting == 1 else 'are'} starting"
        )
    elif refusal.waiting:
        waits = "waits" if refusal.waiting == 1 else "wait"
        detail = f"{plural(refusal.waiting, 'worker')} for it {waits} for a GPU"
    else:
        detail = "a worker for it is submitted in the next pass"
    if refusal.retires_for:
        detail = f"its worker takes no more calls, because {task_name(refusal.retires_for)} waits for the GPU; {detail}"
    return blocker(
        "no_worker",
        detail,
        starting=refusal.starting,
        waiting=refusal.waiting,
        failures=refusal.failures,
        left_ms=left_ms,
        error=refusal.error,
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:.0f}" if ms >= 10_000 else f"{ms / 1_000:.1f}"
