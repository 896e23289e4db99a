"""A node: its session and its leases together. A machine without I/O; the host and the simulator drive it."""

from __future__ import annotations

import msgspec

from dgpu.agent.gpu_use import use_by_lease
from dgpu.agent.lifecycle import DEFAULT_GRACE_MS, Lifecycle
from dgpu.agent.lifecycle_words import (
    Acked,
    CheckRelease,
    DropOutput,
    ForgetRuns,
    GpusReleased,
    HeldRun,
    KeepOutput,
    LeaseState,
    LifecycleInput,
    MemorySeen,
    Ordered,
    OutputStored,
    Report,
    StartRuns,
    StopRuns,
    ThawRuns,
    Welcomed,
    Woke,
)
from dgpu.agent.run.runner import (
    RunEnd,
    RunnerFit,
    RunnerLost,
    RunsEnded,
    RunsFrozen,
    RunsListed,
    RunsStarted,
)
from dgpu.agent.session import Session
from dgpu.agent.session_words import (
    Begin,
    CardChecked,
    CheckCard,
    Connected,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Heard,
    Note,
    Opened,
    Received,
    Sampled,
    SaveEpoch,
    Send,
    SessionInput,
    TakeSamples,
    Written,
)
from dgpu.agent.workers.machine import Workers
from dgpu.agent.workers.words import (
    ArgumentsStored,
    CallOutputClosed,
    EndWorker,
    ResultStored,
    WorkerHungUp,
    WorkerInput,
    WorkerOutput,
    WorkerSaid,
    WorkerUnread,
)
from dgpu.core.model.ids import LeaseId, TaskId


class StreamOpened(msgspec.Struct, frozen=True, kw_only=True):
    """The stream to this address is open. The held leases are added here, not by the caller."""

    address: str


NodeInput = (
    StreamOpened
    | Received
    | Written
    | Disconnected
    | EpochSaved
    | Sampled
    | GpusFound
    | CardChecked
    | Woke
    | Flush
    | RunsListed
    | RunsStarted
    | RunsEnded
    | RunsFrozen
    | RunnerLost
    | RunnerFit
    | GpusReleased
    | OutputStored
    | WorkerInput
)

NodeOutput = (
    Dial
    | Send
    | HangUp
    | SaveEpoch
    | TakeSamples
    | CheckCard
    | Heard
    | Opened
    | Note
    | StartRuns
    | StopRuns
    | ThawRuns
    | ForgetRuns
    | CheckRelease
    | KeepOutput
    | DropOutput
    | WorkerOutput
)

_LIVE = {LeaseState.RECEIVED, LeaseState.STARTING, LeaseState.RUNNING, LeaseState.STOPPING}
_FOR_WORKERS = (WorkerSaid, WorkerHungUp, WorkerUnread, ArgumentsStored, ResultStored, CallOutputClosed)
_FOR_LIFECYCLE = (RunsListed, RunsStarted, RunsEnded, RunsFrozen, RunnerLost, GpusReleased, OutputStored)


class NodeMachine:
    """The caller must execute outputs in order: a `Heard` precedes the starts that rely on it.

    Reports leave at the next Flush, so that simultaneous reports share a message.
    """

    def __init__(self, *, session: Session, lifecycle: Lifecycle, workers: Workers | None = None) -> None:
        self.session = session
        self.lifecycle = lifecycle
        self.workers = workers or Workers(grace_ms=DEFAULT_GRACE_MS)
        self._is_listed = False  # the runs of an earlier agent are known
        self._has_begun = False

    @property
    def wake_at_ms(self) -> int:
        return min(self.session.wake_at_ms, self.lifecycle.wake_at_ms, self.workers.wake_at_ms)

    def held(self) -> list[HeldRun]:
        """Every lease whose end is not acknowledged, calls included."""
        return self.lifecycle.held() + self.workers.book.held()

    def is_running(self, lease_id: LeaseId) -> bool:
        """Whether more output may come. All output before this answer is in files."""
        call = self.workers.book.run_of(lease_id)
        return call.is_running if call is not None else self.lifecycle.state_of(lease_id) in _LIVE

    def run_of(self, lease_id: LeaseId) -> tuple[TaskId, int] | None:
        """Task and attempt of a lease that is known here."""
        call = self.workers.book.run_of(lease_id)
        return (call.task_id, call.attempt) if call is not None else self.lifecycle.run_of(lease_id)

    def on_input(self, value: NodeInput, now_ms: int) -> list[NodeOutput]:
        outputs = self._on_input(value, now_ms)
        if not self._has_begun and self._is_listed and self.workers.are_known:
            # Not before: a registration lists the held leases.
            self._has_begun = True
            outputs += self._to_session(Begin(), now_ms)
        return outputs

    def _on_input(self, value: NodeInput, now_ms: int) -> list[NodeOutput]:
        if isinstance(value, _FOR_WORKERS):
            return self._end_workers(self.workers.on_input(value, now_ms), now_ms)
        if isinstance(value, _FOR_LIFECYCLE):
            return self._on_runner(value, now_ms)
        if isinstance(value, StreamOpened):
            return self._to_session(Connected(address=value.address, held=tuple(self.held())), now_ms)
        if isinstance(value, Sampled):
            return self._on_sampled(value, now_ms)
        if isinstance(value, Woke):
            return (
                self._on_tick(now_ms)
                + self._to_lifecycle(value, now_ms)
                + self._to_session(value, now_ms)
                + self._take(now_ms)
            )
        if isinstance(value, Flush):
            return self._flush(now_ms)
        return self._to_session(value, now_ms)

    def _on_runner(self, value: LifecycleInput, now_ms: int) -> list[NodeOutput]:
        match value:
            case RunsEnded():
                return self._end_workers(self.workers.hold_ends(value.ended, now_ms), now_ms)
            case RunsStarted():
                self.workers.started((lease_id for lease_id, _ in value.started), now_ms)
            case RunsFrozen():
                self.workers.frozen(value.lease_ids, now_ms)
            case RunsListed():
                self._is_listed = True
                self.workers.listed(value.runs, now_ms)
            case OutputStored():
                value = OutputStored(lease_ids=self.workers.book.stored(value.lease_ids))
        return self._to_lifecycle(value, now_ms) + self._take(now_ms)

    def _on_sampled(self, value: Sampled, now_ms: int) -> list[NodeOutput]:
        value = Sampled(samples=self.workers.with_models(value.samples, now_ms), unfit=value.unfit)
        most: dict[LeaseId, int] = {}
        for sample in value.samples:
            for lease_id, memory_mb in sample.leases_mb:
                most[lease_id] = max(most.get(lease_id, 0), memory_mb)
        outputs = self._to_session(value, now_ms)
        use = use_by_lease(value.samples, self.lifecycle.gpu_holders())
        if most or use:
            seen = MemorySeen(leases_mb=tuple(most.items()), use=use)
            outputs += self._to_lifecycle(seen, now_ms)
        return outputs

    # -- workers

    def _on_tick(self, now_ms: int) -> list[NodeOutput]:
        ends, stops = self.workers.tick(now_ms)
        outputs = self._end_workers(ends, now_ms)
        return outputs + self._to_lifecycle(Ordered(stops=stops), now_ms) if stops else outputs

    def _end_workers(self, ends: tuple[RunEnd, ...], now_ms: int) -> list[NodeOutput]:
        """The ends of calls are reported before the end of their worker."""
        outputs = self._take(now_ms)
        return outputs + self._to_lifecycle(RunsEnded(ended=ends), now_ms) if ends else outputs

    def _flush(self, now_ms: int) -> list[NodeOutput]:
        """All that gathered since the last turn of the loop leaves together."""
        outputs = self._take(now_ms)
        if (report := self.workers.book.take_report()) is not None:
            outputs += self._to_session(report, now_ms)
        if (seen := self.workers.book.take_seen()) is not None:
            outputs += self._to_session(seen, now_ms)
        return outputs + self._to_session(Flush(), now_ms)

    def _take(self, now_ms: int) -> list[NodeOutput]:
        """Orders to end workers go to the lifecycle, frames and files to the host."""
        outputs: list[NodeOutput] = []
        for output in self.workers.book.take_outputs():
            if isinstance(output, EndWorker):
                outputs += self._to_lifecycle(output, now_ms)
            else:
                outputs.append(output)
        return outputs

    def _on_ordered(self, ordered: Ordered, now_ms: int) -> list[NodeOutput]:
        outputs: list[NodeOutput] = []
        if ordered.starts:
            outputs += self._to_lifecycle(Ordered(starts=ordered.starts), now_ms)
        for call in ordered.calls:
            self.workers.call(call, now_ms)
        stops = tuple(
            (lease_id, reason)
            for lease_id, reason in ordered.stops
            if not self.workers.stopped(lease_id, reason, now_ms)
        )
        return outputs + self._to_lifecycle(Ordered(stops=stops), now_ms) if stops else outputs

    # -- between the machines

    def _to_session(self, value: SessionInput, now_ms: int) -> list[NodeOutput]:
        outputs: list[NodeOutput] = []
        for output in self.session.on_input(value, now_ms):
            match output:
                case Ordered():
                    outputs += self._on_ordered(output, now_ms)
                case Welcomed():
                    self.workers.welcomed(output.keep)
                    outputs += self._take(now_ms)  # first: a worker that is to end must not be thawed
                    outputs += self._to_lifecycle(output, now_ms)
                case Acked():
                    self.workers.acked(output.returned)
                    if output.started or output.finished:
                        outputs += self._to_lifecycle(output, now_ms)
                case _:
                    outputs.append(output)
        if any(isinstance(output, Heard) for output in outputs):
            # Frozen runs that are still valid continue. If a run was frozen just before its keeper heard of the new
            # welcome, the message about it is still on its way; then the answer to the next heartbeat thaws it.
            thaws = self.lifecycle.thaw_frozen()
            for thaw in thaws:
                self.workers.thawed(thaw.lease_ids, now_ms)
            outputs += thaws
        return outputs

    def _to_lifecycle(self, value: LifecycleInput, now_ms: int) -> list[NodeOutput]:
        outputs: list[NodeOutput] = []
        for output in self.lifecycle.on_input(value, now_ms):
            if isinstance(output, Report):
                if output.finished and (report := self.workers.book.take_report()) is not None:
                    outputs += self._to_session(report, now_ms)
                outputs += self._to_session(output, now_ms)
                continue
            if isinstance(output, StartRuns):
                self.workers.ordered(output.orders)
            elif isinstance(output, ThawRuns):
                self.workers.thawed(output.lease_ids, now_ms)
            outputs.append(output)
        return outputs
