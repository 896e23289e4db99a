"""Every lease on a node, from its order until it is no longer needed. A machine without I/O.

RECEIVED  ordered, not started yet (the runner is being replaced, or a GPU is still being freed)
STARTING  given to the runner
RUNNING   its process exists
STOPPING  told to end
RELEASING its processes have ended; the memory of its GPUs is not confirmed free yet
ENDED     its report waits for an acknowledgement
ACKED     the end is durable at the scheduler; its output is not stored there yet
(gone)    forgotten except for its number
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from msgspec.structs import replace

from dgpu.agent.lifecycle_words import (
    Acked,
    CheckRelease,
    DropOutput,
    FinishedRun,
    ForgetRuns,
    GpusReleased,
    HeldRun,
    KeepOutput,
    LeaseState,
    LifecycleInput,
    LifecycleOutput,
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
from dgpu.agent.node_lease import (
    NodeLease,
    adopted_order,
    lost_end,
    refused_end,
    reports_of,
    stop_order,
    unstarted_end,
)
from dgpu.agent.reservations import Reservations, after_fault
from dgpu.agent.run.runner import (
    KnownRun,
    RunEnd,
    RunnerFit,
    RunnerLost,
    RunOrder,
    RunsEnded,
    RunsFrozen,
    RunsListed,
    RunsStarted,
    StopOrder,
)
from dgpu.agent.start_watch import START_MS, StartWatch
from dgpu.agent.workers.words import EndWorker
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome

RELEASE_MS = 10_000  # time for a GPU to free its memory
DEFAULT_GRACE_MS = 10_000
_MAX_REMEMBERED = 4_096
_LATE = f"withdrawn: not started within {START_MS // 1_000} s"  # with an upload, its own limit


class Lifecycle:
    def __init__(self, *, grace_ms: int = DEFAULT_GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._leases: dict[LeaseId, NodeLease] = {}
        self._waiting: dict[LeaseId, NodeLease] = {}  # those RECEIVED
        self._abandoned: dict[LeaseId, NodeLease] = {}  # given up, but their processes have not ended yet
        self.memory = Reservations()
        self._starts = StartWatch()
        self._runner_up = False
        self._gone: collections.OrderedDict[LeaseId, None] = collections.OrderedDict()

    def on_input(self, value: LifecycleInput, now_ms: int) -> list[LifecycleOutput]:
        match value:
            case Ordered():
                return self._on_ordered(value, now_ms)
            case RunsStarted():
                return self._on_started(value)
            case RunsEnded():
                return self._on_ended(value.ended, now_ms)
            case Acked():
                return self._on_acked(value)
            case GpusReleased():
                return self._on_released(value)
            case OutputStored():
                return self._on_stored(value)
            case Welcomed():
                return self._on_welcomed(value)
            case MemorySeen():
                return self._on_memory(value)
            case RunsListed():
                return self._on_listed(value, now_ms)
            case RunsFrozen():
                for lease_id in value.lease_ids:
                    if lease_id in self._leases:
                        self._leases[lease_id].frozen = True
                return []
            case RunnerLost():
                self._runner_up = False
                return []
            case RunnerFit():
                return []  # orders wait until their deadline, whatever state the runner reports
            case EndWorker():
                return self._on_end_worker(value)
            case Woke():
                return self._withdraw_late(now_ms)

    @property
    def wake_at_ms(self) -> int:
        return self._starts.wake_at_ms

    def held(self) -> list[HeldRun]:
        """The content of a registration: every lease whose end is not acknowledged."""
        return [
            lease.held()
            for lease in self._leases.values()
            if lease.state is not LeaseState.ACKED and lease.reported
        ]

    def gpu_holders(self) -> dict[GpuId, tuple[LeaseId, ...]]:
        """Several if tasks share the GPU."""
        found: dict[GpuId, tuple[LeaseId, ...]] = {}
        for lease_id, lease in self._leases.items():
            if lease.state not in {LeaseState.ENDED, LeaseState.ACKED}:
                for gpu_id in lease.order.gpu_ids:
                    found[gpu_id] = (*found.get(gpu_id, ()), lease_id)
        return found

    def thaw_frozen(self) -> list[ThawRuns]:
        """A scheduler that still counts this node as alive answered: valid leases may run."""
        frozen = [lease_id for lease_id, lease in self._leases.items() if lease.may_thaw and lease.reported]
        for lease_id in frozen:
            self._leases[lease_id].frozen = False
        return [ThawRuns(lease_ids=tuple(frozen))] if frozen else []

    def state_of(self, lease_id: LeaseId) -> LeaseState | None:
        lease = self._leases.get(lease_id)
        return None if lease is None else lease.state

    def run_of(self, lease_id: LeaseId) -> tuple[TaskId, int] | None:
        """Task and attempt of a lease that is known here."""
        lease = self._leases.get(lease_id)
        return None if lease is None else (lease.order.task_id, lease.order.attempt)

    # -- the scheduler's words

    def _on_ordered(self, ordered: Ordered, now_ms: int) -> list[LifecycleOutput]:
        repeated: list[NodeLease] = []
        refusals: list[FinishedRun] = []
        for order in ordered.starts:
            known = self._leases.get(order.lease_id)
            if known is None and order.lease_id not in self._gone:
                lease = self._leases[order.lease_id] = NodeLease(order, LeaseState.RECEIVED)
                self._waiting[order.lease_id] = lease
                self._starts.add(order.lease_id, now_ms, has_upload=bool(order.upload))
            elif known is not None and known.answers(order):
                known.tell_again()
                repeated.append(known)
            elif known is not None and order.lease_id in self._abandoned:
                known.refused = refused_end(order, known, now_ms)
            else:
                refusals.append(FinishedRun(end=refused_end(order, known, now_ms)))
        outputs = self._start_ready()
        if refusals:
            outputs.append(Report(finished=tuple(refusals)))
        stops: list[StopOrder] = []
        unstarted: list[RunEnd] = []
        for lease_id, reason in ordered.stops:
            cause = Outcome.TIMEOUT if reason == "timeout" else Outcome.STOPPED
            stopped = self._leases.get(lease_id)
            if stopped is None and lease_id not in self._gone:
                # Its start never arrived: the answer is an end, which a late start will find.
                order = RunOrder(lease_id=lease_id, task_id=TaskId(0), attempt=0)
                stopped = self._leases[lease_id] = NodeLease(order, LeaseState.RECEIVED)
            if stopped is None:
                continue
            if stopped.state is LeaseState.RECEIVED:
                self._waiting.pop(lease_id, None)
                unstarted.append(unstarted_end(lease_id, cause, now_ms))
            elif stopped.state in {LeaseState.STARTING, LeaseState.RUNNING}:
                stops.append(stop_order(stopped, self._grace_ms, cause, reason))
            elif stopped.state in {LeaseState.ENDED, LeaseState.ACKED}:
                stopped.tell_again()
                repeated.append(stopped)
        if stops:
            outputs.append(StopRuns(orders=tuple(stops)))
        return outputs + self._on_ended(tuple(unstarted), now_ms) + reports_of(repeated)

    def _on_welcomed(self, welcomed: Welcomed) -> list[LifecycleOutput]:
        outputs: list[LifecycleOutput] = []
        stops: list[StopOrder] = []
        thaws: list[LeaseId] = []
        kept: list[NodeLease] = []
        for lease_id, lease in list(self._leases.items()):
            lease.foreign = lease.order.cluster_id not in {"", welcomed.cluster_id}
            if lease.foreign and not lease.stored:
                lease.stored = True
                if lease.end is not None:
                    outputs.append(DropOutput(lease_id=lease_id))
            if lease.state is LeaseState.ACKED:
                if lease.foreign:
                    outputs += self._forget([lease_id])
                continue
            if lease_id in welcomed.keep and lease.reported:
                kept.append(lease)
                lease.started_told = lease.started_acked
                if lease.may_thaw:
                    thaws.append(lease_id)
                    lease.frozen = False
            else:
                outputs += self._give_up(lease_id, lease, stops)
        if stops:
            outputs.append(StopRuns(orders=tuple(stops)))
        if thaws:
            outputs.append(ThawRuns(lease_ids=tuple(thaws)))
        return outputs + self._start_ready() + reports_of(kept)

    def _give_up(self, lease_id: LeaseId, lease: NodeLease, stops: list[StopOrder]) -> list[LifecycleOutput]:
        lease.reported = False
        if lease.state is LeaseState.RECEIVED:
            self._waiting.pop(lease_id, None)
            return self._forget([lease_id])
        if lease.state is LeaseState.ENDED:
            return self._settle([lease_id])
        self._abandoned[lease_id] = lease
        if lease.state in {LeaseState.STARTING, LeaseState.RUNNING, LeaseState.STOPPING}:
            # No grace: the task may already run elsewhere.
            stops.append(stop_order(lease, 0, Outcome.STOPPED))
        return []

    def _on_acked(self, acked: Acked) -> list[LifecycleOutput]:
        for lease_id in acked.started:
            lease = self._leases.get(lease_id)
            if lease is not None:
                lease.started_acked = True
        return self._settle(acked.finished)

    # -- the runner's words

    def _on_started(self, value: RunsStarted) -> list[LifecycleOutput]:
        fresh: list[NodeLease] = []
        for lease_id, at_ms in value.started:
            lease = self._leases.get(lease_id)
            if lease is None or lease.started_at_ms:
                continue
            lease.started_at_ms = at_ms
            self._starts.drop(lease_id)
            if lease.state is LeaseState.STARTING:
                lease.state = LeaseState.RUNNING
            fresh.append(lease)
        return reports_of(fresh)

    def _on_memory(self, seen: MemorySeen) -> list[LifecycleOutput]:
        stops: list[StopOrder] = []
        self.memory.note_use(self._leases, seen.use)
        for lease_id, memory_mb in seen.leases_mb:
            lease = self._leases.get(lease_id)
            if lease is None or lease.end is not None or not self.memory.look(lease.order, memory_mb):
                continue
            if lease.state is LeaseState.RUNNING:
                lease.state = LeaseState.STOPPING
                cause = Outcome.OUT_OF_MEMORY
                stops.append(StopOrder(lease_id=lease_id, grace_ms=self._grace_ms, cause=cause))
        return [StopRuns(orders=tuple(stops))] if stops else []

    def _on_end_worker(self, value: EndWorker) -> list[LifecycleOutput]:
        lease = self._leases.get(value.lease_id)
        if lease is None or lease.end is not None or lease.state is LeaseState.RECEIVED:
            return []
        return [StopRuns(orders=(stop_order(lease, value.grace_ms, value.cause),))]

    def _on_ended(self, ended: Iterable[RunEnd], now_ms: int) -> list[LifecycleOutput]:
        outputs: list[LifecycleOutput] = []
        over: list[NodeLease] = []
        releasing: list[tuple[LeaseId, tuple[GpuId, ...]]] = []
        for end in ended:
            lease = self._leases.get(end.lease_id)
            if lease is None and self._runner_up:
                # Given up before. The runner must not answer a later order under this number with this run.
                outputs.append(ForgetRuns(lease_ids=(end.lease_id,)))
            if lease is None or lease.end is not None:
                continue
            order = lease.order
            self._starts.drop(end.lease_id)
            if lease.withdrawn and not lease.started_at_ms:
                lease.end = replace(end, error=_LATE)
            else:
                lease.end = end
            lease.peak_mb, lease.gpu_use = self.memory.take(end.lease_id)
            lease.frozen = False
            lease.stored = lease.foreign or not (end.output_bytes or end.output_lost)
            if not lease.stored:
                outputs.append(
                    KeepOutput(
                        lease_id=end.lease_id,
                        task_id=order.task_id,
                        attempt=order.attempt,
                        lost_bytes=end.output_lost,
                        output_bytes=end.output_bytes,
                    )
                )
            if end.unkilled:
                lease.stuck = order.gpu_ids
            if order.gpu_ids and lease.started_at_ms and not end.unkilled:
                lease.state = LeaseState.RELEASING
                releasing.append((end.lease_id, order.gpu_ids))
            else:
                lease.state = LeaseState.ENDED
                over.append(lease)
        if releasing:
            outputs.append(CheckRelease(leases=tuple(releasing), until_ms=now_ms + RELEASE_MS))
        return outputs + self._conclude(over)

    def _on_released(self, value: GpusReleased) -> list[LifecycleOutput]:
        over: list[NodeLease] = []
        for fault in value.faults:
            lease = self._leases.get(fault.lease_id)
            if lease is not None and lease.state is LeaseState.RELEASING and lease.end is not None:
                lease.end = after_fault(
                    lease.end, lease.order, peak_mb=lease.peak_mb, xid=fault.xid, card_mb=fault.card_mb
                )
        for lease_id, stuck in value.released:
            lease = self._leases.get(lease_id)
            if lease is not None and lease.state is LeaseState.RELEASING:
                lease.stuck = stuck
                lease.state = LeaseState.ENDED
                over.append(lease)
        return self._conclude(over)

    def _on_listed(self, listed: RunsListed, now_ms: int) -> list[LifecycleOutput]:
        self._runner_up = True
        outputs: list[LifecycleOutput] = []
        known = {run.lease_id: run for run in listed.runs}
        lost: list[RunEnd] = []
        missed: list[StopOrder] = []
        for lease_id, lease in self._leases.items():
            run = known.pop(lease_id, None)
            if lease.end is not None or lease.state is LeaseState.RECEIVED:
                continue
            if run is None:
                # The runner records an order before it starts it. An unknown order never ran.
                never_ran = not lease.started_at_ms
                lost.append(
                    unstarted_end(lease_id, Outcome.STOPPED, now_ms)
                    if never_ran
                    else lost_end(lease_id, now_ms)
                )
                continue
            outputs += self._catch_up(lease, run, lost)
            if lease.stop is not None and run.end is None:
                missed.append(lease.stop)  # the order may have been lost
        if missed:
            outputs.append(StopRuns(orders=tuple(missed)))
        for run in known.values():
            if run.lease_id in self._gone:
                outputs.append(ForgetRuns(lease_ids=(run.lease_id,)))  # the first order was lost
            else:
                outputs += self._adopt(run, lost, now_ms)
        return outputs + self._on_ended(lost, now_ms) + self._start_ready()

    def _catch_up(self, lease: NodeLease, run: KnownRun, ends: list[RunEnd]) -> list[LifecycleOutput]:
        lease.frozen = run.frozen
        if run.end is not None:
            ends.append(run.end)
        if run.started_at_ms and not lease.started_at_ms:
            return self._on_started(RunsStarted(started=((run.lease_id, run.started_at_ms),)))
        return []

    def _adopt(self, run: KnownRun, ends: list[RunEnd], now_ms: int) -> list[LifecycleOutput]:
        lease = self._leases[run.lease_id] = NodeLease(adopted_order(run), LeaseState.STARTING)
        self._starts.add(run.lease_id, now_ms)
        return self._catch_up(lease, run, ends)

    def _withdraw_late(self, now_ms: int) -> list[LifecycleOutput]:
        """Orders past their start deadline. An order that the runner never got has certainly ended. An order that it
        got may have started: its end is certain when the runner confirms it, or has been replaced.
        """
        ends: list[RunEnd] = []
        stops: list[StopOrder] = []
        for lease_id in self._starts.late(now_ms):
            lease = self._leases.get(lease_id)
            if lease is None or lease.end is not None or lease.started_at_ms:
                continue
            if lease.state is LeaseState.RECEIVED:
                self._waiting.pop(lease_id, None)
                ends.append(RunEnd(lease_id=lease_id, outcome=Outcome.STOPPED, at_ms=now_ms, error=_LATE))
            elif lease.state is LeaseState.STARTING:
                lease.withdrawn = True
                stops.append(stop_order(lease, 0, Outcome.STOPPED))
        outputs: list[LifecycleOutput] = [StopRuns(orders=tuple(stops))] if stops else []
        return outputs + self._on_ended(ends, now_ms)

    # -- leaves

    def _start_ready(self) -> list[LifecycleOutput]:
        """All waiting leases that need no GPU of an abandoned task."""
        if not self._waiting or not self._runner_up:
            return []
        clearing = {gpu_id for lease in self._abandoned.values() for gpu_id in lease.order.gpu_ids}
        ready = [lease for lease in self._waiting.values() if clearing.isdisjoint(lease.order.gpu_ids)]
        for lease in ready:
            del self._waiting[lease.order.lease_id]
            lease.state = LeaseState.STARTING
        return [StartRuns(orders=tuple(lease.order for lease in ready))] if ready else []

    def _conclude(self, over: list[NodeLease]) -> list[LifecycleOutput]:
        """Completes ends: reports them, or settles them at once if no report is needed."""
        silent = [lease.order.lease_id for lease in over if not lease.reported]
        outputs = reports_of([lease for lease in over if lease.reported])
        if silent:
            refusals = [lease.refused for lease in over if not lease.reported and lease.refused is not None]
            if refusals:
                outputs.append(Report(finished=tuple(FinishedRun(end=end) for end in refusals)))
            for lease_id in silent:
                self._abandoned.pop(lease_id, None)
            outputs += self._settle(silent)
            outputs += self._start_ready()
        return outputs

    def _settle(self, lease_ids: Iterable[LeaseId]) -> list[LifecycleOutput]:
        """The scheduler needs no more reports of these leases."""
        done: list[LeaseId] = []
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is None or lease.state is not LeaseState.ENDED:
                continue
            lease.state = LeaseState.ACKED
            if lease.stored:
                done.append(lease_id)
        return self._forget(done)

    def _on_stored(self, value: OutputStored) -> list[LifecycleOutput]:
        done: list[LeaseId] = []
        for lease_id in value.lease_ids:
            lease = self._leases.get(lease_id)
            if lease is None:
                continue
            lease.stored = True
            if lease.state is LeaseState.ACKED:
                done.append(lease_id)
        return self._forget(done)

    def _forget(self, lease_ids: list[LeaseId]) -> list[LifecycleOutput]:
        for lease_id in lease_ids:
            del self._leases[lease_id]
            self._gone[lease_id] = None
        while len(self._gone) > _MAX_REMEMBERED:
            self._gone.popitem(last=False)
        return [ForgetRuns(lease_ids=tuple(lease_ids))] if lease_ids else []
