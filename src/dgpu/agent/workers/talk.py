"""What workers say, and what their calls need from the host. No I/O."""

from __future__ import annotations

from dgpu.agent.marks import STDERR, STDOUT
from dgpu.agent.workers.book import Book
from dgpu.agent.workers.calls import CallOrder, CallOutcome, CallProgress
from dgpu.agent.workers.records import (
    IN_WORKER,
    MAX_PROGRESS_TEXT,
    NodeCall,
    NodeWorker,
    Stage,
    models_of,
    returned,
)
from dgpu.agent.workers.words import (
    ArgumentsStored,
    DeleteArguments,
    PutResult,
    ResultStored,
    WriteCallOutput,
)
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.worker import frames


class Talk:
    def __init__(self, book: Book) -> None:
        self._book = book

    def on_said(self, worker: NodeWorker, said: list[frames.ToAgent], now_ms: int) -> None:
        worker.heard_ms = now_ms
        for frame in said:
            if not worker.is_greeted and not isinstance(frame, frames.Hello):
                self._book.end_worker(worker, "the worker broke the protocol: its first frame is no hello")
                return
            match frame:
                case frames.Done():
                    self._on_done(worker, frame, now_ms)
                case frames.Started():
                    self._on_started(worker, frame, now_ms)
                case frames.Output():
                    self._on_output(worker, frame)
                case frames.Progress():
                    self._on_progress(worker, frame)
                case frames.Models():
                    worker.models = models_of(frame.models, now_ms)
                    self._book.change(worker)
                case frames.Ready():
                    worker.ready = True
                    self._book.change(worker)
                case frames.Hello():
                    self._on_hello(worker, frame, now_ms)
                case frames.Beat():
                    if worker.is_used:  # the last use of its models counts, but not a message for each call
                        worker.is_used = False
                        self._book.change(worker)

    # -- the first frame of a connection

    def _on_hello(self, worker: NodeWorker, hello: frames.Hello, now_ms: int) -> None:
        if hello.protocol != frames.PROTOCOL:
            error = (
                f"the worker speaks protocol {hello.protocol}, this node {frames.PROTOCOL}: "
                "install the dgpu of this cluster in its Python environment"
            )
            self._book.end_worker(worker, error)
            return
        worker.is_linked = worker.is_greeted = True
        worker.models = models_of(hello.models, now_ms)
        self._book.change(worker)
        claimed = {LeaseId(each.lease): each for each in hello.calls}
        for lease_id, each in claimed.items():
            if lease_id not in worker.calls:
                self._claim(worker, each)
        worker.is_adopted = False
        for lease_id, call in list(worker.calls.items()):
            self._match(call, claimed.get(lease_id), now_ms)

    def _claim(self, worker: NodeWorker, said: frames.HeldCall) -> None:
        """A call of an earlier agent, or a result whose end is acknowledged."""
        lease_id = LeaseId(said.lease)
        if worker.is_adopted and lease_id not in self._book.calls and lease_id not in self._book.gone:
            order = CallOrder(
                lease_id=lease_id,
                task_id=TaskId(said.task_id),
                attempt=said.attempt,
                worker_lease_id=worker.lease_id,
                nonce=said.nonce,
                cluster_id=said.cluster,
            )
            call = NodeCall(order, worker, Stage.SENT, is_kept=False)
            self._book.calls[lease_id] = worker.calls[lease_id] = call
        elif said.state == "done":
            self._book.take(worker, said.lease)
        else:
            self._book.end_worker(
                worker, f"the worker runs call {said.lease}, which this node did not give it"
            )

    def _match(self, call: NodeCall, said: frames.HeldCall | None, now_ms: int) -> None:
        """Compares a call with what the worker knows of it."""
        if call.stage not in IN_WORKER:
            if call.stage is Stage.WAITING:
                self._book.send(call)
            return
        if said is None and call.stage is Stage.RUNNING:
            self._book.finish(call, call.ended("worker_lost", now_ms, "its worker has forgotten it"))
        elif said is None:
            self._book.send(call)  # lost with the last connection
        else:
            if said.state == "running":
                self._note_started(call, now_ms)
            if call.cause is not None:
                self._book.say(call.worker, frames.Cancel(lease=call.order.lease_id))

    # -- calls

    def _call(self, worker: NodeWorker, lease: int) -> NodeCall | None:
        """A call that the worker may speak of."""
        call = self._book.calls.get(LeaseId(lease))
        return call if call is not None and call.worker is worker and call.stage in IN_WORKER else None

    def _note_started(self, call: NodeCall, now_ms: int) -> None:
        if call.stage is Stage.SENT:
            call.stage, call.started_at_ms = Stage.RUNNING, now_ms
            if call.is_kept:
                self._book.started.append((call.order.lease_id, now_ms))

    def _on_started(self, worker: NodeWorker, started: frames.Started, now_ms: int) -> None:
        call = self._call(worker, started.lease)
        if call is not None:
            self._note_started(call, now_ms)

    def _on_done(self, worker: NodeWorker, done: frames.Done, now_ms: int) -> None:
        call = self._call(worker, done.lease)
        if call is None:
            if LeaseId(done.lease) not in self._book.calls:
                self._book.take(worker, done.lease)
            return
        if call.order.model:
            worker.use(call.order.model, now_ms)
        end = returned(call, done, now_ms)
        if not done.result_file or not call.reported:
            self._book.finish(call, end)
            return
        call.end, call.stage = end, Stage.PUTTING
        self._put(call, done.result_file)

    def _put(self, call: NodeCall, name: str) -> None:
        if call.end is not None:
            put = PutResult(
                lease_id=call.order.lease_id,
                worker_lease_id=call.worker.lease_id,
                name=name,
                sha256=call.end.ref,
                size=call.end.size,
            )
            self._book.emit(put)

    def _on_output(self, worker: NodeWorker, output: frames.Output) -> None:
        call = self._call(worker, output.lease)
        if call is None or not output.data:
            return
        call.output_bytes += len(output.data)
        write = WriteCallOutput(
            lease_id=call.order.lease_id,
            worker_lease_id=worker.lease_id,
            stream=STDERR if output.stream == 2 else STDOUT,
            data=output.data,
        )
        self._book.emit(write)

    def _on_progress(self, worker: NodeWorker, said: frames.Progress) -> None:
        call = self._call(worker, said.lease)
        if call is not None:
            self._book.progress[call.order.lease_id] = CallProgress(
                lease_id=call.order.lease_id,
                permille=min(max(0, said.permille), 1_000),
                text=said.text[:MAX_PROGRESS_TEXT],
            )

    # -- answers of the host

    def on_arguments(self, stored: ArgumentsStored, now_ms: int) -> None:
        call = self._book.calls.get(stored.lease_id)
        if call is None or call.stage is not Stage.FETCHING:
            if stored.name:  # the call was cancelled meanwhile
                unread = DeleteArguments(worker_lease_id=stored.worker_lease_id, name=stored.name)
                self._book.emit(unread)
            return
        if stored.error:
            outcome: CallOutcome = "worker_lost" if stored.is_of_node else "raised"
            self._book.finish(call, call.ended(outcome, now_ms, f"arguments: {stored.error}"))
            return
        call.args_file, call.stage = stored.name, Stage.WAITING
        if call.worker.is_greeted:
            self._book.send(call)

    def on_result_stored(self, stored: ResultStored, now_ms: int) -> None:
        call = self._book.calls.get(stored.lease_id)
        if call is None or call.stage is not Stage.PUTTING or call.end is None:
            return
        if stored.error:
            lost: CallOutcome = "worker_lost" if stored.is_lost else "cannot_encode"
            self._book.finish(call, call.ended(lost, now_ms, f"result: {stored.error}"))
        else:
            self._book.finish(call, call.end)
