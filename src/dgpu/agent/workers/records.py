"""One worker and one call on a node, as the machine knows them."""

from __future__ import annotations

import enum

from dgpu.agent.lifecycle_words import HeldRun, LeaseState
from dgpu.agent.run.runner import RunEnd
from dgpu.agent.workers.calls import CallOrder, CallOutcome, ReturnedCall, WorkerModel, WorkerState
from dgpu.core.model.ids import GpuId, LeaseId
from dgpu.core.model.task import Outcome
from dgpu.worker import frames

MAX_TEXT = 1_000  # characters of a name or a line from a worker
MAX_TRACEBACK = 64 << 10
MAX_MODELS = 64
MAX_PROGRESS_TEXT = 200


class Stage(enum.Enum):
    FETCHING = enum.auto()  # its arguments
    WAITING = enum.auto()  # for the hello of its worker
    SENT = enum.auto()
    RUNNING = enum.auto()
    PUTTING = enum.auto()  # its result to the scheduler
    ENDED = enum.auto()  # the report waits for an acknowledgement


_HELD = {
    Stage.FETCHING: LeaseState.STARTING,
    Stage.WAITING: LeaseState.STARTING,
    Stage.SENT: LeaseState.STARTING,
    Stage.RUNNING: LeaseState.RUNNING,
    Stage.PUTTING: LeaseState.RUNNING,
    Stage.ENDED: LeaseState.ENDED,
}
BEFORE_WORKER = frozenset({Stage.FETCHING, Stage.WAITING})  # the worker has never seen it
IN_WORKER = frozenset({Stage.SENT, Stage.RUNNING})


class NodeCall:
    __slots__ = (
        "args_file",
        "cancelled_at_ms",
        "cause",
        "end",
        "is_kept",
        "is_output_open",
        "order",
        "output_bytes",
        "reported",
        "stage",
        "started_at_ms",
        "worker",
    )

    def __init__(self, order: CallOrder, worker: NodeWorker, stage: Stage, *, is_kept: bool = True) -> None:
        self.order = order
        self.worker = worker
        self.stage = stage
        self.is_kept = (
            is_kept  # False: only the worker says that it has this call, no scheduler has confirmed it yet
        )
        self.reported = True  # False: given up by the scheduler, which needs no report
        self.started_at_ms = 0
        self.cause: CallOutcome | None = None  # why it is to end: cancelled or timeout
        self.cancelled_at_ms = 0
        self.args_file = ""
        self.output_bytes = 0
        self.is_output_open = False  # it has ended, but its last output is not in files yet
        self.end: ReturnedCall | None = None

    def held(self) -> HeldRun:
        order = self.order
        return HeldRun(
            lease_id=order.lease_id,
            task_id=order.task_id,
            state=_HELD[self.stage],
            attempt=order.attempt,
            nonce=order.nonce,
            cluster_id=order.cluster_id,
            worker_lease_id=order.worker_lease_id,
        )

    def frame(self) -> frames.Call:
        order = self.order
        return frames.Call(
            lease=order.lease_id,
            task_id=order.task_id,
            attempt=order.attempt,
            entrypoint=order.entrypoint,
            args=order.args,
            args_file=self.args_file,
            model=order.model,
            timeout_ms=order.timeout_ms,
            nonce=order.nonce,
            cluster=order.cluster_id,
        )

    def is_same_run(self, order: CallOrder) -> bool:
        own = self.order
        return (own.task_id, own.attempt, own.nonce) == (order.task_id, order.attempt, order.nonce)

    def ended(self, outcome: CallOutcome, now_ms: int, error: str = "") -> ReturnedCall:
        """Without a result."""
        ran_ms = now_ms - self.started_at_ms if self.started_at_ms else 0
        return ReturnedCall(
            lease_id=self.order.lease_id,
            outcome=outcome,
            at_ms=now_ms,
            error=error,
            ran_ms=ran_ms,
            output_bytes=self.output_bytes,
        )


class NodeWorker:
    __slots__ = (
        "calls",
        "down",
        "end",
        "end_by_ms",
        "frozen_at_ms",
        "gpu_ids",
        "heard_ms",
        "hello_by_ms",
        "is_adopted",
        "is_greeted",
        "is_linked",
        "is_unread",
        "is_used",
        "lease_id",
        "leave_by_ms",
        "leave_reason",
        "models",
        "ready",
        "silence_ms",
        "why",
    )

    def __init__(self, lease_id: LeaseId, *, gpu_ids: tuple[GpuId, ...], silence_ms: int) -> None:
        self.lease_id = lease_id
        self.gpu_ids = gpu_ids
        self.silence_ms = silence_ms
        self.hello_by_ms = 0  # 0: its process has not started yet
        self.is_adopted = False  # from an earlier agent, and not greeted yet: its calls are unknown
        self.is_linked = False
        self.is_greeted = False
        self.is_unread = False  # the host does not read its heartbeats
        self.ready = False
        self.models: dict[str, WorkerModel] = {}
        self.is_used = False  # since its state was sent
        self.calls: dict[LeaseId, NodeCall] = {}  # in the order of their arrival
        self.heard_ms = 0
        self.frozen_at_ms = 0
        self.down = ""  # why it is considered broken
        self.why = ""  # why the node ends it, whatever the cause
        self.leave_reason: str | None = None  # of the scheduler's stop, if the worker may leave by itself
        self.leave_by_ms = 0
        self.end: RunEnd | None = None  # held back until its connection has been read to the end
        self.end_by_ms = 0

    def state(self) -> WorkerState:
        return WorkerState(
            lease_id=self.lease_id, ready=self.ready, models=tuple(self.models.values()), down=self.down
        )

    def has_work(self) -> bool:
        return any(call.end is None for call in self.calls.values())

    def use(self, model: str, now_ms: int) -> None:
        known = self.models.get(model)
        if known is not None:
            self.is_used = True
            self.models[model] = WorkerModel(
                name=known.name,
                loading=known.loading,
                memory_mb=known.memory_mb,
                load_ms=known.load_ms,
                used_at_ms=now_ms,
            )


def models_of(said: tuple[frames.ModelState, ...], now_ms: int) -> dict[str, WorkerModel]:
    return {
        model.name: WorkerModel(
            name=model.name[:MAX_TEXT],
            loading=model.loading,
            memory_mb=max(0, model.memory_mb),
            load_ms=max(0, model.load_ms),
            used_at_ms=max(0, now_ms - max(0, model.used_ago_ms)),
        )
        for model in said[:MAX_MODELS]
    }


def returned(call: NodeCall, done: frames.Done, now_ms: int) -> ReturnedCall:
    # The scheduler ends the session of a node that reports more, and with it the work of all other tasks.
    if len(done.result) > frames.MAX_INLINE_BYTES:
        error = f"the worker broke the protocol: a result of {len(done.result):,} bytes within a frame"
        return call.ended("cannot_encode", now_ms, error)
    outcome: CallOutcome = done.outcome
    if call.cause is not None and outcome not in {"returned", "out_of_memory"}:
        outcome = call.cause  # the exception of a function that was cancelled says less
    return ReturnedCall(
        lease_id=call.order.lease_id,
        outcome=outcome,
        at_ms=now_ms,
        result=b"" if done.result_file else done.result,
        encoding=done.encoding[:16],
        ref=done.sha256 if done.result_file else "",
        size=max(0, done.size) or len(done.result),
        error=done.error[:MAX_TEXT],
        traceback=done.traceback[-MAX_TRACEBACK:],
        ran_ms=max(0, done.ran_ms),
        output_bytes=max(call.output_bytes, done.output_bytes),
    )


def description(end: RunEnd) -> str:
    """How a worker ended, for the errors of its calls."""
    if end.signal:
        how = f"its worker was killed by signal {end.signal}"
    elif end.outcome is Outcome.EXITED:
        how = f"its worker exited with code {end.exit_code}"
    else:
        how = f"its worker ended ({end.outcome.value})"
    return f"{how}: {end.error}" if end.error else how
