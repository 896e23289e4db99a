"""The inputs of the rules, read from the state at a committed point. Cheap: a few thousand nodes take milliseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice

from dgpu.core.events import TaskFinished
from dgpu.core.index.limits import quota_of
from dgpu.core.model.health import SERVING
from dgpu.core.model.ids import GpuId, task_name
from dgpu.core.model.quota import QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, Pool, Task, TaskStatus
from dgpu.core.rules.admission import used_milli
from dgpu.core.state import ClusterState
from dgpu.service.alerts.rules import (
    HotGpu,
    OfflineNode,
    Oldest,
    Readings,
    RuleSet,
    SickGpu,
    UnfitNode,
    Unsaved,
    Use,
)
from dgpu.service.alerts.worker_rules import TroubledWorkers
from dgpu.service.machine.agent_words import GpuSample, is_reason_of_node
from dgpu.service.machine.outputs import CommittedGroup

_BUCKETS = 60  # of the window of the failure rate
# Lines are in the order in which they began to wait, so the oldest tasks are among the first.
_MAX_LINES = 20_000
_STALE_MS = 60_000  # an older temperature says nothing about the present


class EndedTasks:
    """Numbers of recently ended and failed tasks. A cancelled task counts as neither."""

    def __init__(self, window_ms: int) -> None:
        self._bucket_ms = max(1, window_ms // _BUCKETS)
        self._buckets: deque[list[int]] = deque()  # index of the bucket, ended, failed

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            if type(event) is TaskFinished and event.status is not TaskStatus.CANCELLED:
                self._count(event.at, failed=event.status is TaskStatus.FAILED)

    def totals(self, now: int) -> tuple[int, int]:
        oldest = now // self._bucket_ms - _BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()
        return sum(bucket[1] for bucket in self._buckets), sum(bucket[2] for bucket in self._buckets)

    def _count(self, at: int, *, failed: bool) -> None:
        number = at // self._bucket_ms
        if not self._buckets or self._buckets[-1][0] < number:
            self._buckets.append([number, 0, 0])
            while len(self._buckets) > _BUCKETS + 1:
                self._buckets.popleft()
        self._buckets[-1][1] += 1
        self._buckets[-1][2] += failed


def read_state(
    state: ClusterState,
    telemetry: Mapping[GpuId, GpuSample],
    rules: RuleSet,
    now: int,
    troubled: TroubledWorkers | None = None,
) -> Readings:
    """All inputs except those of the process: disk and ended tasks."""
    return Readings(
        at=now,
        offline=_offline(state) if rules.agent_offline.enabled else (),
        unfit=_unfit(state) if rules.node_unfit.enabled else (),
        unsaved=_unsaved(state) if rules.history_behind.enabled else None,
        sick=_sick(state) if rules.gpu_error.enabled or rules.gpu_unrecoverable.enabled else (),
        hot=_hot(state, telemetry, rules.gpu_temperature.limit_c, now)
        if rules.gpu_temperature.enabled
        else (),
        uses=_uses(state) if rules.quota_usage.enabled else (),
        oldest=_oldest(state) if rules.queue_wait.enabled else (),
        troubles=troubled.read(state, now) if troubled is not None and rules.worker_down.enabled else (),
    )


def _offline(state: ClusterState) -> tuple[OfflineNode, ...]:
    return tuple(
        OfflineNode(node.id, node.offline_since, sum(1 for _ in state.node_leases(node.id)), node.draining)
        for node in state.nodes.values()
        if node.offline_since
    )


def _unfit(state: ClusterState) -> tuple[UnfitNode, ...]:
    return tuple(
        UnfitNode(node.id, node.drain_reason, sum(1 for _ in state.node_leases(node.id)))
        for node in state.nodes.values()
        if node.draining and not node.offline_since and is_reason_of_node(node.drain_reason)
    )


def _unsaved(state: ClusterState) -> Unsaved | None:
    """Counts from a fifth of the bound: a short lag after a burst is not worth an alert."""
    limit = state.settings.max_unsaved
    tasks = state.ended_count - state.settings.keep_finished
    return Unsaved(tasks, limit) if tasks > limit // 5 else None


def _sick(state: ClusterState) -> tuple[SickGpu, ...]:
    """Includes GPUs that their node no longer lists: a GPU that fell off the bus needs an alert most."""
    return tuple(
        SickGpu(known.gpu_id, known.node_id, known.state, known.since, known.cause, known.evidence)
        for known in state.health.values()
        if known.state not in SERVING and known.node_id in state.nodes
    )


def _hot(
    state: ClusterState, telemetry: Mapping[GpuId, GpuSample], limit_c: int, now: int
) -> tuple[HotGpu, ...]:
    gpus = state.gpus
    return tuple(
        HotGpu(gpu_id, gpus[gpu_id].node_id, heat)
        for gpu_id, sample in telemetry.items()
        if (heat := sample.temperature_c) is not None
        and heat > limit_c
        and gpu_id in gpus
        and now - sample.at < _STALE_MS
    )


def _uses(state: ClusterState) -> tuple[Use, ...]:
    quota = quota_of(state)
    used = {pool: used_milli(state, pool) for pool in Pool}
    if state.quota.mode is QuotaMode.BORROW:  # a pool may exceed its share; the limit is for both together
        pools = [Use("pools together", sum(used.values()), sum(quota.milli(pool) for pool in Pool))]
    else:
        pools = [Use(f"pool {pool.value}", used[pool], quota.milli(pool)) for pool in Pool]
    tenants = [
        Use(
            f"tenant {tenant.id}",
            state.accounts.open(tenant.id).milli,
            tenant.max_gpus * WHOLE_MILLI,
            tenant.id,
        )
        for tenant in state.tenants.values()
        if tenant.max_gpus
    ]
    return (*pools, *tenants)


def _oldest(state: ClusterState) -> tuple[Oldest, ...]:
    found = []
    tasks = state.tasks
    for pool, use in state.queue.pools.items():
        heads = [tasks[line.head] for line in islice(use.ready, _MAX_LINES) if line.head]
        if heads:
            first = min(heads, key=_waits_since)
            name = "no pool" if pool is None else f"pool {pool.value}"
            tenant = state.shapes[first.shape_id].tenant_id
            found.append(Oldest(name, task_name(first.id), _waits_since(first), tenant))
    return tuple(found)


def _waits_since(task: Task) -> int:
    """For a task that ran before, only the wait since then counts."""
    return max(task.created_at, task.eligible_at, task.started_at, task.finished_at)
