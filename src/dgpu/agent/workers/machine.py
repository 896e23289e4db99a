"""The workers of a node and their calls. A machine without I/O.

A worker is an ordinary run, which the lifecycle starts and ends. This machine speaks with its process: it passes calls
on, gathers their ends for the reports, and watches the worker. The scheduler acknowledges the end of a call; only then
is the worker told that its result was taken. So a result survives the agent.

An agent that finds workers of an earlier agent does not know their calls. The node registers when each such worker has
named its calls or has ended: the scheduler places a call again if the node does not hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import KnownRun, RunEnd, RunOrder
from dgpu.agent.session_calls import NEVER_MS
from dgpu.agent.workers.book import Book
from dgpu.agent.workers.calls import CallOrder, CallOutcome, ReturnedCall
from dgpu.agent.workers.records import (
    BEFORE_WORKER,
    IN_WORKER,
    NodeCall,
    NodeWorker,
    Stage,
    description,
)
from dgpu.agent.workers.samples import with_models
from dgpu.agent.workers.talk import Talk
from dgpu.agent.workers.words import (
    ArgumentsStored,
    CallOutputClosed,
    ConnectWorker,
    FetchArguments,
    HangUpWorker,
    ResultStored,
    WorkerHungUp,
    WorkerInput,
    WorkerSaid,
    WorkerUnread,
)
from dgpu.core.model.ids import GpuId, LeaseId
from dgpu.core.model.task import Outcome
from dgpu.core.model.worker import TAKEN_BACK
from dgpu.worker import frames

HELLO_MS = 120_000  # from the start of its process to its first frame
ADOPTED_HELLO_MS = 5_000  # a worker that runs already answers at once
REGISTER_MS = 30_000  # the node waits no longer for workers of an earlier agent
LEAVE_MS = 5_000  # for a worker to unload its models and exit
DRAIN_MS = 2_000  # after its end, for the last bytes of its connection
TICK_MS = 500
FAULT_MS = 15_000  # so long the node reports a fault of the GPUs of a worker that stopped to answer


class GpuFault(NamedTuple):
    words: str
    until_ms: int


class Workers:
    def __init__(self, *, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self.book = Book()
        self._talk = Talk(self.book)
        self._register_by_ms = NEVER_MS
        self._tick_at_ms = 0
        self._faults: dict[GpuId, GpuFault] = {}

    @property
    def are_known(self) -> bool:
        """Whether all calls are known, so that the node may register."""
        return not any(worker.is_adopted for worker in self.book.workers.values())

    @property
    def wake_at_ms(self) -> int:
        return self._tick_at_ms if self.book.workers else NEVER_MS

    # -- runs of workers

    def ordered(self, orders: Iterable[RunOrder]) -> None:
        for order in orders:
            if order.worker is not None and order.lease_id not in self.book.workers:
                self.book.workers[order.lease_id] = NodeWorker(
                    order.lease_id, gpu_ids=order.gpu_ids, silence_ms=order.worker.heartbeat_timeout_ms
                )

    def started(self, lease_ids: Iterable[LeaseId], now_ms: int) -> None:
        for lease_id in lease_ids:
            worker = self.book.workers.get(lease_id)
            if worker is not None and not worker.hello_by_ms:
                worker.hello_by_ms = now_ms + HELLO_MS
                self.book.emit(ConnectWorker(lease_id=lease_id))

    def listed(self, runs: tuple[KnownRun, ...], now_ms: int) -> None:
        """The first list names workers of an earlier agent. Later lists come from a new keeper: all others are gone."""
        alive = {run.lease_id: run for run in runs if run.end is None and run.worker_silence_ms}
        ends = {run.lease_id: run.end for run in runs if run.end is not None}
        for lease_id, worker in list(self.book.workers.items()):
            if lease_id not in alive:
                lost = RunEnd(
                    lease_id=lease_id, outcome=Outcome.NODE_FAULT, at_ms=now_ms, error="its keeper died"
                )
                self._conclude(worker, ends.get(lease_id) or worker.end or lost, now_ms)
        for lease_id, run in alive.items():
            if lease_id not in self.book.workers:
                self._adopt(run, now_ms)

    def _adopt(self, run: KnownRun, now_ms: int) -> None:
        worker = self.book.workers[run.lease_id] = NodeWorker(
            run.lease_id, gpu_ids=run.gpu_ids, silence_ms=run.worker_silence_ms
        )
        if not run.started_at_ms:
            return
        worker.is_adopted = True
        worker.hello_by_ms = now_ms + ADOPTED_HELLO_MS
        self._register_by_ms = now_ms + REGISTER_MS
        if run.frozen:
            # It cannot name its calls, and must not go on with them: they may be placed on another node.
            self.book.end_worker(worker, "its agent was replaced while it was frozen")
        else:
            self.book.emit(ConnectWorker(lease_id=run.lease_id))

    def frozen(self, lease_ids: Iterable[LeaseId], now_ms: int) -> None:
        for lease_id in lease_ids:
            worker = self.book.workers.get(lease_id)
            if worker is not None and not worker.frozen_at_ms:
                worker.frozen_at_ms = now_ms

    def thawed(self, lease_ids: Iterable[LeaseId], now_ms: int) -> None:
        """Time limits do not count the time in between."""
        for lease_id in lease_ids:
            worker = self.book.workers.get(lease_id)
            if worker is None or not worker.frozen_at_ms:
                continue
            passed_ms, worker.frozen_at_ms = now_ms - worker.frozen_at_ms, 0
            worker.heard_ms = now_ms
            worker.hello_by_ms += passed_ms if worker.hello_by_ms else 0
            for call in worker.calls.values():
                call.started_at_ms += passed_ms if call.started_at_ms else 0
                call.cancelled_at_ms += passed_ms if call.cancelled_at_ms else 0

    def hold_ends(self, ended: tuple[RunEnd, ...], now_ms: int) -> tuple[RunEnd, ...]:
        """Returns the ends for the lifecycle. The end of a connected worker waits for the last frames of its calls."""
        ready: list[RunEnd] = []
        for end in ended:
            worker = self.book.workers.get(end.lease_id)
            if worker is None:
                ready.append(end)
            elif worker.is_linked:
                worker.end, worker.end_by_ms = end, now_ms + DRAIN_MS
            else:
                ready.append(self._conclude(worker, end, now_ms))
        return tuple(ready)

    def _conclude(self, worker: NodeWorker, end: RunEnd, now_ms: int) -> RunEnd:
        """No more frames will come: calls without an end are lost. Returns the end for the lifecycle."""
        worker.is_linked = worker.is_greeted = False
        del self.book.workers[worker.lease_id]
        self.book.changed.pop(worker.lease_id, None)
        self.book.drop_frames(worker)
        self.book.emit(HangUpWorker(lease_id=worker.lease_id))
        if worker.leave_reason is not None and end.outcome is Outcome.EXITED:
            end = replace(end, outcome=Outcome.STOPPED)
        if worker.why:
            end = replace(end, error=worker.why)
        for call in list(worker.calls.values()):
            if call.end is None:
                self.book.finish(call, call.ended(call.cause or "worker_lost", now_ms, description(end)))
        return end

    # -- the scheduler's words

    def call(self, order: CallOrder, now_ms: int) -> None:
        book = self.book
        known = book.calls.get(order.lease_id)
        if known is not None and known.is_same_run(order):
            book.tell_again(known)
            return
        worker = book.workers.get(order.worker_lease_id)
        if known is not None or order.lease_id in book.gone:
            error = f"lease {order.lease_id} was not started: its number was used before"
        elif worker is None or worker.why or worker.end is not None:
            error = worker.why if worker is not None and worker.why else "its worker is not on this node"
        else:
            call = NodeCall(order, worker, Stage.FETCHING if order.args_ref else Stage.WAITING)
            book.calls[order.lease_id] = worker.calls[order.lease_id] = call
            if order.args_ref:
                fetch = FetchArguments(
                    lease_id=order.lease_id, worker_lease_id=worker.lease_id, sha256=order.args_ref
                )
                book.emit(fetch)
            elif worker.is_greeted:
                book.send(call)
            return
        lost = ReturnedCall(lease_id=order.lease_id, outcome="worker_lost", at_ms=now_ms, error=error)
        book.returned.append(lost)

    def stopped(self, lease_id: LeaseId, reason: str, now_ms: int) -> bool:
        """An order to stop. False: the lifecycle is to obey it."""
        worker = self.book.workers.get(lease_id)
        if worker is not None:
            return self._leave(worker, reason, now_ms)
        call = self.book.calls.get(lease_id)
        if call is None:
            return lease_id in self.book.gone
        if call.end is not None:
            if call.stage is Stage.ENDED:
                self.book.tell_again(call)
        elif call.stage in BEFORE_WORKER:
            outcome: CallOutcome = "timeout" if reason == "timeout" else "cancelled"
            self.book.finish(call, call.ended(outcome, now_ms, "stopped before it was started"))
        elif reason == TAKEN_BACK:
            if call.stage is Stage.SENT:
                self.book.say(call.worker, frames.Cancel(lease=lease_id, queued=True))
        elif call.cause is None:
            self.book.cancel(call, timeout=reason == "timeout", now_ms=now_ms)
        return True

    def _leave(self, worker: NodeWorker, reason: str, now_ms: int) -> bool:
        """A worker without work unloads its models and exits; signals follow if it does not."""
        if worker.leave_reason is not None:
            return bool(worker.leave_by_ms)
        if not worker.is_greeted or worker.frozen_at_ms or worker.why or worker.end is not None:
            return worker.end is not None
        if worker.has_work():
            return False
        worker.leave_reason, worker.leave_by_ms = reason, now_ms + LEAVE_MS
        self.book.say(worker, frames.Leave())
        return True

    def welcomed(self, keep: frozenset[LeaseId]) -> None:
        """Calls that the scheduler does not keep were placed elsewhere or have ended: they must not go on here."""
        book = self.book
        book.started, book.returned = [], []
        book.changed = dict(book.workers)
        for lease_id, call in list(book.calls.items()):
            if lease_id in keep and call.reported:
                call.is_kept = True
                if call.stage is Stage.ENDED:
                    book.tell_again(call)
                elif call.started_at_ms:
                    book.started.append((lease_id, call.started_at_ms))
                continue
            call.reported = False
            if call.stage in IN_WORKER:
                book.end_worker(call.worker, "one of its calls was given to another node")
            else:
                book.settle(call)

    def acked(self, lease_ids: tuple[LeaseId, ...]) -> None:
        for lease_id in lease_ids:
            call = self.book.calls.get(lease_id)
            if call is not None and call.stage is Stage.ENDED:
                self.book.settle(call)

    # -- the host's words

    def on_input(self, value: WorkerInput, now_ms: int) -> tuple[RunEnd, ...]:
        """Returns ends for the lifecycle."""
        match value:
            case WorkerSaid():
                worker = self.book.workers.get(value.lease_id)
                if worker is not None:
                    self._talk.on_said(worker, value.frames, now_ms)
            case WorkerHungUp():
                return self._on_hung_up(value, now_ms)
            case WorkerUnread():
                self._on_unread(value, now_ms)
            case ArgumentsStored():
                self._talk.on_arguments(value, now_ms)
            case ResultStored():
                self._talk.on_result_stored(value, now_ms)
            case CallOutputClosed():
                self.book.on_output_closed(value)
        return ()

    def _on_unread(self, value: WorkerUnread, now_ms: int) -> None:
        worker = self.book.workers.get(value.lease_id)
        if worker is not None:
            worker.is_unread, worker.heard_ms = value.is_unread, now_ms

    def _on_hung_up(self, value: WorkerHungUp, now_ms: int) -> tuple[RunEnd, ...]:
        worker = self.book.workers.get(value.lease_id)
        if worker is None:
            return ()
        worker.is_linked = worker.is_greeted = worker.is_unread = False
        worker.hello_by_ms = now_ms + worker.silence_ms
        self.book.drop_frames(worker)
        if worker.end is not None:
            return (self._conclude(worker, worker.end, now_ms),)
        if value.broken:
            self.book.end_worker(worker, f"the worker broke the protocol: {value.broken}")
        return ()

    def with_models(self, samples: Sequence[Sample], now_ms: int) -> tuple[Sample, ...]:
        self._faults = {gpu_id: fault for gpu_id, fault in self._faults.items() if now_ms < fault.until_ms}
        faults = {gpu_id: fault.words for gpu_id, fault in self._faults.items()}
        return with_models(samples, self.book.workers.values(), faults)

    # -- time

    def tick(self, now_ms: int) -> tuple[tuple[RunEnd, ...], tuple[tuple[LeaseId, str], ...]]:
        """Returns ends and stops for the lifecycle."""
        if now_ms < self._tick_at_ms:
            return (), ()
        self._tick_at_ms = now_ms + TICK_MS
        ends: list[RunEnd] = []
        stops: list[tuple[LeaseId, str]] = []
        for worker in list(self.book.workers.values()):
            if now_ms >= self._register_by_ms:
                worker.is_adopted = False
            if worker.end is not None:
                if now_ms >= worker.end_by_ms:
                    ends.append(self._conclude(worker, worker.end, now_ms))
                continue
            if worker.leave_by_ms and now_ms >= worker.leave_by_ms:
                worker.leave_by_ms = 0
                stops.append((worker.lease_id, worker.leave_reason or ""))
            if not (worker.frozen_at_ms or worker.why):
                self._look_after(worker, now_ms)
        if now_ms >= self._register_by_ms:
            self._register_by_ms = NEVER_MS
        return tuple(ends), tuple(stops)

    def _look_after(self, worker: NodeWorker, now_ms: int) -> None:
        if not worker.is_greeted:
            if worker.hello_by_ms and now_ms >= worker.hello_by_ms:
                self.book.end_worker(worker, "the worker did not answer on its socket in time")
            return
        if not worker.is_unread and now_ms - worker.heard_ms >= worker.silence_ms:
            worker.down = f"no heartbeat for {worker.silence_ms / 1_000:g} s"
            fault = GpuFault(f"a worker on it gave {worker.down}", now_ms + FAULT_MS)
            self._faults |= dict.fromkeys(worker.gpu_ids, fault)
            self.book.change(worker)
            self.book.end_worker(worker, worker.down)
            return
        for call in worker.calls.values():
            if call.stage is Stage.RUNNING and (late := self._why_late(call, now_ms)):
                self.book.end_worker(worker, late)
                return

    def _why_late(self, call: NodeCall, now_ms: int) -> str:
        """Why a call must end now, together with its worker; empty: it may go on."""
        limit_ms = call.order.timeout_ms
        grace_s = self._grace_ms / 1_000
        if call.cause is None and limit_ms and now_ms >= call.started_at_ms + limit_ms + self._grace_ms:
            call.cause = "timeout"
            return f"a call ran {grace_s:g} s beyond its limit of {limit_ms / 1_000:g} s"
        since_ms = max(call.cancelled_at_ms, call.started_at_ms)
        if call.cause is not None and now_ms >= since_ms + self._grace_ms:
            return f"a call did not end within {grace_s:g} s after it was cancelled"
        return ""
