"""A node: its session and its leases together. A machine without I/O; the host and the simulator drive it."""

from __future__ import annotations

import msgspec

from dgpu.agent.gpu_use import use_by_lease
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import (
    Acked,
    CheckRelease,
    DropOutput,
    ForgetRuns,
    GpusReleased,
    KeepOutput,
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
from dgpu.agent.run.runner import RunnerFit, RunnerLost, RunsEnded, RunsFrozen, RunsListed, RunsStarted
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
from dgpu.agent.workers.calls import CallOrder, ReturnedCall
from dgpu.core.model.ids import LeaseId


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
)

_FOR_LIFECYCLE = (RunsListed, RunsStarted, RunsEnded, RunsFrozen, RunnerLost, GpusReleased, OutputStored)


class NodeMachine:
    """The caller must execute outputs in order: a `Heard` precedes the starts that rely on it.

    Reports leave at the next Flush, so that simultaneous reports share a message.
    """

    def __init__(self, *, session: Session, lifecycle: Lifecycle) -> None:
        self.session = session
        self.lifecycle = lifecycle

    @property
    def wake_at_ms(self) -> int:
        return min(self.session.wake_at_ms, self.lifecycle.wake_at_ms)

    def on_input(self, value: NodeInput, now_ms: int) -> list[NodeOutput]:
        if isinstance(value, _FOR_LIFECYCLE):
            outputs = self._to_lifecycle(value, now_ms)
            if isinstance(value, RunsListed):
                # Not before: a registration lists the held leases.
                outputs += self._to_session(Begin(), now_ms)
            return outputs
        if isinstance(value, StreamOpened):
            return self._to_session(
                Connected(address=value.address, held=tuple(self.lifecycle.held())), now_ms
            )
        if isinstance(value, Sampled):
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
        if isinstance(value, Woke):
            return self._to_lifecycle(value, now_ms) + self._to_session(value, now_ms)
        return self._to_session(value, now_ms)

    def _to_session(self, value: SessionInput, now_ms: int) -> list[NodeOutput]:
        outputs: list[NodeOutput] = []
        for output in self.session.on_input(value, now_ms):
            if isinstance(output, Ordered) and output.calls:
                outputs += self._to_session(_without_worker(output.calls, now_ms), now_ms)
            if isinstance(output, Welcomed | Ordered | Acked):
                outputs += self._to_lifecycle(output, now_ms)
            else:
                outputs.append(output)
        if any(isinstance(output, Heard) for output in outputs):
            # Frozen runs that are still valid continue. If a run was frozen just before its keeper heard of the new
            # welcome, the message about it is still on its way; then the answer to the next heartbeat thaws it.
            outputs += self.lifecycle.thaw_frozen()
        return outputs

    def _to_lifecycle(self, value: LifecycleInput, now_ms: int) -> list[NodeOutput]:
        outputs: list[NodeOutput] = []
        for output in self.lifecycle.on_input(value, now_ms):
            if isinstance(output, Report):
                outputs += self._to_session(output, now_ms)
            else:
                outputs.append(output)
        return outputs


def _without_worker(calls: tuple[CallOrder, ...], now_ms: int) -> Report:
    """The node has no such worker, or no longer."""
    error = "its worker is not on this node"
    return Report(
        returned=tuple(
            ReturnedCall(lease_id=call.lease_id, outcome="worker_lost", at_ms=now_ms, error=error)
            for call in calls
        )
    )
