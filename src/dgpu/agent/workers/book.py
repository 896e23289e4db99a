"""The calls of a node, from their orders to the acknowledgement of their ends, and messages that wait. No I/O."""

from __future__ import annotations

import collections

from dgpu.agent.lifecycle_words import HeldRun, KeepOutput, Report
from dgpu.agent.workers.calls import CallProgress, ReturnedCall, WorkersSeen
from dgpu.agent.workers.records import NodeCall, NodeWorker, Stage
from dgpu.agent.workers.words import (
    CallOutputClosed,
    CallRun,
    CloseCallOutput,
    DeleteArguments,
    DeleteCallOutput,
    EndWorker,
    TellWorker,
    WorkerOutput,
)
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome
from dgpu.worker import frames

_MAX_REMEMBERED = 65_536

BookOutput = WorkerOutput | KeepOutput


class Book:
    def __init__(self) -> None:
        self.workers: dict[LeaseId, NodeWorker] = {}
        self.calls: dict[LeaseId, NodeCall] = {}  # until their ends are acknowledged
        self.gone: collections.OrderedDict[LeaseId, None] = collections.OrderedDict()
        self.started: list[tuple[LeaseId, int]] = []  # to be reported
        self.returned: list[ReturnedCall] = []  # the same
        self.changed: dict[LeaseId, NodeWorker] = {}  # their states are to be sent
        self.progress: dict[LeaseId, CallProgress] = {}
        self._unstored: dict[LeaseId, CallRun] = {}  # acknowledged, but their output is not stored yet
        self._frames: dict[LeaseId, list[frames.ToWorker]] = {}
        self._taken: dict[LeaseId, list[int]] = {}
        self._outputs: list[BookOutput] = []

    # -- for registrations and readers of output

    def held(self) -> list[HeldRun]:
        return [call.held() for call in self.calls.values() if call.reported]

    def run_of(self, lease_id: LeaseId) -> CallRun | None:
        call = self.calls.get(lease_id)
        if call is None:
            return self._unstored.get(lease_id)
        is_running = call.stage is not Stage.ENDED or call.is_output_open
        return CallRun(task_id=call.order.task_id, attempt=call.order.attempt, is_running=is_running)

    # -- batches, once per turn of the loop

    def take_outputs(self) -> list[BookOutput]:
        outputs, self._outputs = self._outputs, []
        taken, self._taken = self._taken, {}
        for lease_id, leases in taken.items():
            self._frames.setdefault(lease_id, []).append(frames.Taken(leases=tuple(leases)))
        if self._frames:
            told, self._frames = self._frames, {}
            outputs += [TellWorker(lease_id=lease_id, frames=said) for lease_id, said in told.items()]
        return outputs

    def take_report(self) -> Report | None:
        if not (self.started or self.returned):
            return None
        report = Report(started=tuple(self.started), returned=tuple(self.returned))
        self.started, self.returned = [], []
        return report

    def take_seen(self) -> WorkersSeen | None:
        if not (self.changed or self.progress):
            return None
        seen = WorkersSeen(
            states=tuple(worker.state() for worker in self.changed.values()),
            progress=tuple(self.progress.values()),
        )
        self.changed, self.progress = {}, {}
        return seen

    # -- workers

    def emit(self, output: BookOutput) -> None:
        self._outputs.append(output)

    def say(self, worker: NodeWorker, frame: frames.ToWorker) -> None:
        """A worker without a connection gets all that still counts after its next hello."""
        if worker.is_greeted:
            self._frames.setdefault(worker.lease_id, []).append(frame)

    def drop_frames(self, worker: NodeWorker) -> None:
        self._frames.pop(worker.lease_id, None)
        self._taken.pop(worker.lease_id, None)

    def change(self, worker: NodeWorker) -> None:
        self.changed[worker.lease_id] = worker

    def end_worker(self, worker: NodeWorker, error: str) -> None:
        """The node itself ends it, without grace: its calls may run elsewhere, or it does not answer."""
        if not worker.why:
            worker.why = error
            end = EndWorker(lease_id=worker.lease_id, grace_ms=0, cause=Outcome.STOPPED, error=error)
            self._outputs.append(end)

    # -- calls

    def send(self, call: NodeCall) -> None:
        call.stage = Stage.SENT
        self.say(call.worker, call.frame())
        if call.cause is not None:
            self.say(call.worker, frames.Cancel(lease=call.order.lease_id))

    def cancel(self, call: NodeCall, *, timeout: bool, now_ms: int) -> None:
        call.cause = "timeout" if timeout else "cancelled"
        call.cancelled_at_ms = now_ms
        self.say(call.worker, frames.Cancel(lease=call.order.lease_id))

    def finish(self, call: NodeCall, end: ReturnedCall) -> None:
        call.end, call.stage = end, Stage.ENDED
        if end.output_bytes and call.reported:
            call.output_bytes, call.is_output_open = end.output_bytes, True
            self._outputs.append(CloseCallOutput(lease_id=call.order.lease_id))
        if not call.reported:
            self.settle(call)
        elif call.is_kept:
            self.returned.append(end)

    def tell_again(self, call: NodeCall) -> None:
        if call.end is not None and call.reported:
            self.returned.append(call.end)

    def settle(self, call: NodeCall) -> None:
        """The scheduler needs no more reports of it: the worker may forget its result."""
        lease_id, worker = call.order.lease_id, call.worker
        del self.calls[lease_id]
        del worker.calls[lease_id]
        self.progress.pop(lease_id, None)
        self.gone[lease_id] = None
        if len(self.gone) > _MAX_REMEMBERED:
            self.gone.popitem(last=False)
        if worker.is_greeted:
            self._taken.setdefault(worker.lease_id, []).append(lease_id)
        if call.args_file and (call.end is None or call.end.outcome != "returned"):
            self._outputs.append(DeleteArguments(worker_lease_id=worker.lease_id, name=call.args_file))
        if not call.output_bytes:
            return
        if call.reported:
            order = call.order
            self._unstored[lease_id] = CallRun(task_id=order.task_id, attempt=order.attempt, is_running=False)
        else:
            self._outputs.append(DeleteCallOutput(lease_ids=(lease_id,)))

    def take(self, worker: NodeWorker, lease: int) -> None:
        """The worker may forget this end: the scheduler does not wait for it."""
        self._taken.setdefault(worker.lease_id, []).append(lease)

    def on_output_closed(self, closed: CallOutputClosed) -> None:
        run = self.run_of(closed.lease_id)
        if run is None:
            self._outputs.append(DeleteCallOutput(lease_ids=(closed.lease_id,)))
            return
        if (call := self.calls.get(closed.lease_id)) is not None:
            call.is_output_open = False
        self._outputs.append(
            KeepOutput(
                lease_id=closed.lease_id,
                task_id=run.task_id,
                attempt=run.attempt,
                lost_bytes=closed.lost_bytes,
                output_bytes=closed.output_bytes,
            )
        )

    def stored(self, lease_ids: tuple[LeaseId, ...]) -> tuple[LeaseId, ...]:
        """Output of these leases is settled. Returns the leases that are no calls."""
        others: list[LeaseId] = []
        for lease_id in lease_ids:
            call = self.calls.get(lease_id)
            if call is None and self._unstored.pop(lease_id, None) is None:
                others.append(lease_id)
                continue
            if call is not None:
                call.output_bytes = 0  # nothing is left to be stored
            self._outputs.append(DeleteCallOutput(lease_ids=(lease_id,)))
        return tuple(others)
