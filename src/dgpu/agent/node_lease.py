"""One lease on a node as the lifecycle knows it, and the messages about it."""

from __future__ import annotations

from dgpu.agent.gpu_use import GpuUse
from dgpu.agent.lifecycle_words import FinishedRun, HeldRun, LeaseState, LifecycleOutput, Report
from dgpu.agent.run.runner import KnownRun, RunEnd, RunOrder, StopOrder
from dgpu.core.model.ids import GpuId, LeaseId, task_name
from dgpu.core.model.task import Outcome


class NodeLease:
    __slots__ = (
        "end",
        "foreign",
        "frozen",
        "gpu_use",
        "order",
        "peak_mb",
        "refused",
        "reported",
        "started_acked",
        "started_at_ms",
        "started_told",
        "state",
        "stop",
        "stored",
        "stuck",
        "withdrawn",
    )

    def __init__(self, order: RunOrder, state: LeaseState) -> None:
        self.order = order
        self.state = state
        self.started_at_ms = 0
        self.started_told = False  # reported to the scheduler of the current session
        self.started_acked = False
        self.frozen = False
        self.end: RunEnd | None = None
        self.stop: StopOrder | None = None  # the last order to the runner
        self.stuck: tuple[GpuId, ...] = ()
        self.stored = False
        self.peak_mb = 0  # of memory, known at its end
        self.gpu_use = GpuUse()  # the same
        self.withdrawn = False  # not started within its deadline
        self.reported = True  # False: given up by the scheduler, which needs no report
        self.foreign = False  # from another cluster: its output is not for this scheduler
        self.refused: RunEnd | None = (
            None  # of an order under its number; reported when its processes have ended
        )

    @property
    def may_thaw(self) -> bool:
        """False: it is being killed, and must not run until then."""
        return self.frozen and (self.stop is None or self.stop.grace_ms > 0)

    def held(self) -> HeldRun:
        return HeldRun(
            lease_id=self.order.lease_id,
            task_id=self.order.task_id,
            state=self.state,
            attempt=self.order.attempt,
            nonce=self.order.nonce,
            cluster_id=self.order.cluster_id,
        )

    def tell_again(self) -> None:
        """A scheduler that orders a lease with an acknowledged end has lost that end with the tail of its journal."""
        if self.state is LeaseState.ACKED:
            self.state = LeaseState.ENDED

    def answers(self, order: RunOrder) -> bool:
        """Whether the order is a repetition. If a stop came before the start, the task is unknown (0)."""
        return self.reported and (not self.order.task_id or self.order.is_same_run(order))


def reports_of(leases: list[NodeLease]) -> list[LifecycleOutput]:
    """Reports of these leases: starts once per session, ends whenever requested."""
    started: list[tuple[LeaseId, int]] = []
    finished: list[FinishedRun] = []
    for lease in leases:
        if not lease.reported:
            continue
        if lease.started_at_ms and not lease.started_told:
            lease.started_told = True
            started.append((lease.order.lease_id, lease.started_at_ms))
        if lease.state is LeaseState.ENDED and lease.end is not None:
            run = FinishedRun(
                end=lease.end, stuck=lease.stuck, peak_memory_mb=lease.peak_mb, gpu_use=lease.gpu_use
            )
            finished.append(run)
    return [Report(started=tuple(started), finished=tuple(finished))] if started or finished else []


_FINAL_STOPS = frozenset({"", "cancelled", "timeout", "rank_ended"})  # after any other, the task runs again


def stop_order(lease: NodeLease, grace_ms: int, cause: Outcome, reason: str = "") -> StopOrder:
    lease.state = LeaseState.STOPPING
    lease.stop = StopOrder(
        lease_id=lease.order.lease_id, grace_ms=grace_ms, cause=cause, warned=reason not in _FINAL_STOPS
    )
    return lease.stop


def unstarted_end(lease_id: LeaseId, cause: Outcome, now_ms: int) -> RunEnd:
    return RunEnd(lease_id=lease_id, outcome=cause, at_ms=now_ms, error="stopped before it was started")


def adopted_order(run: KnownRun) -> RunOrder:
    """All that is left of the order of a run from an earlier agent."""
    return RunOrder(
        lease_id=run.lease_id,
        task_id=run.task_id,
        attempt=run.attempt,
        gpu_ids=run.gpu_ids,
        gpu_memory_mb=run.max_mb,
        kill_outgrown=run.max_mb > 0,
        nonce=run.nonce,
        cluster_id=run.cluster_id,
    )


def lost_end(lease_id: LeaseId, now_ms: int) -> RunEnd:
    return RunEnd(lease_id=lease_id, outcome=Outcome.NODE_FAULT, at_ms=now_ms, error="its keeper died")


def refused_end(order: RunOrder, known: NodeLease | None, now_ms: int) -> RunEnd:
    """An order under a used number. It is reported as ended, so that the scheduler gives the task another lease."""
    if known is None:
        why = "has ended here before"
    elif known.order.is_same_run(order):
        why = "was withdrawn before"
    else:
        why = f"belongs to {task_name(known.order.task_id)} of another journal"
    error = f"lease {order.lease_id} was not started: the number {why}"
    return RunEnd(lease_id=order.lease_id, outcome=Outcome.NODE_FAULT, at_ms=now_ms, error=error)
