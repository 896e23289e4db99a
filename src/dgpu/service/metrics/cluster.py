"""The state and the counters as metric families, except those of single GPUs. No metric has a label per task."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from dgpu.core.index.limits import quota_of
from dgpu.core.model.health import Health
from dgpu.core.model.ids import TenantId
from dgpu.core.model.node import GpuStatus, NodeStatus
from dgpu.core.model.task import WHOLE_MILLI, Pool, TaskStatus
from dgpu.core.model.usage import HOUR_MS
from dgpu.core.rules.admission import spent, used_milli
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Tenants
from dgpu.service.metrics.meters import OTHER, Meters
from dgpu.service.metrics.text import Text
from dgpu.service.views.views import CountKey

MAX_TENANTS = 50  # with their own label; all others share one


class TenantLoad(msgspec.Struct, kw_only=True, gc=False):
    tenant_id: str
    gpus_used: float = 0
    running: int = 0
    waiting: int = 0
    gpu_hours: float = 0  # of this month
    max_gpus: int | None = None

    def add(self, more: TenantLoad) -> None:
        self.gpus_used += more.gpus_used
        self.running += more.running
        self.waiting += more.waiting
        self.gpu_hours += more.gpu_hours


Counts = Mapping[CountKey, Mapping[TaskStatus, int]]


def tenant_loads(state: ClusterState, counts: Counts, at: int, tenants: Tenants = None) -> list[TenantLoad]:
    """Of these tenants; None: of all. See `main_loads`."""
    return main_loads(all_loads(state, counts, at), tenants)


def all_loads(state: ClusterState, counts: Counts, at: int) -> list[TenantLoad]:
    loads = {tenant_id: TenantLoad(tenant_id=tenant_id) for tenant_id in state.tenants}
    for (tenant, _, _), by_status in counts.items():
        waiting, running = by_status.get(TaskStatus.PENDING, 0), by_status.get(TaskStatus.RUNNING, 0)
        if waiting or running:
            load = loads.setdefault(TenantId(tenant), TenantLoad(tenant_id=tenant))
            load.waiting += waiting
            load.running += running
    for tenant_id, load in loads.items():
        account = state.accounts.by_tenant.get(tenant_id)
        if account is not None:
            load.gpus_used = account.milli / WHOLE_MILLI
            uncharged = account.uncharged(max(at, state.meter.charged_at)) if state.tenants else 0
            load.gpu_hours = (spent(state, account) + uncharged) / 1_000 / HOUR_MS
            load.max_gpus = None if account.tenant is None else account.tenant.max_gpus
    return list(loads.values())


def main_loads(loads: list[TenantLoad], tenants: Tenants) -> list[TenantLoad]:
    """The tenants that hold most, then those with most waiting tasks; the last entry sums up all others."""
    if tenants is not None:
        loads = [load for load in loads if load.tenant_id in tenants]
    first = heapq.nsmallest(
        MAX_TENANTS,
        loads,
        key=lambda load: (-load.gpus_used, -load.waiting, -load.gpu_hours, load.tenant_id),
    )
    if len(first) < len(loads):
        rest = TenantLoad(tenant_id=OTHER)
        named = {load.tenant_id for load in first}
        for load in loads:
            if load.tenant_id not in named:
                rest.add(load)
        first.append(rest)
    return first


def tell_tasks(text: Text, state: ClusterState, meters: Meters) -> None:
    text.by("priority", "task_submitted_total", "counter", "Tasks submitted.", meters.submitted)
    text.by("priority", "task_scheduled_total", "counter", "Times a task was placed.", meters.scheduled)
    finished = {status.value: number for status, number in meters.finished.items()}
    text.by("status", "task_finished_total", "counter", "Tasks that ended.", finished)
    about = "Attempts that failed without a fault of the task, which then waited again."
    text.by("reason", "task_requeued_total", "counter", about, meters.requeued)
    text.one("task_pending_total", "gauge", "Tasks that wait now.", state.waiting_count)
    text.one("task_running_total", "gauge", "Tasks that run now.", state.running_count)
    about = "Tasks ever submitted; this number survives restarts."
    text.one("task_ids_total", "counter", about, state.next_task_id - 1)
    text.one("scheduler_queue_size", "gauge", "Tasks that wait now.", state.waiting_count)
    about = "Time from submission, or from the end of an attempt and its back-off, to the placement."
    waits = {pool.value: known for pool, known in meters.wait.items()}
    text.histograms("pool", "scheduler_queue_wait_seconds", about, waits)


def tell_gpus(text: Text, state: ClusterState) -> None:
    counts = state.gpu_counts()
    text.one("gpu_total", "gauge", "GPUs of all registered nodes.", sum(counts.values()))
    for status in GpuStatus:
        text.one(
            f"gpu_{status.value}_total", "gauge", f"GPUs in the state {status.value} now.", counts[status]
        )
    health = {each.value: 0 for each in Health if each is not Health.TRUSTED}
    for known in state.health.values():
        if known.state is not Health.TRUSTED and known.gpu_id in state.gpus:
            health[known.state.value] += 1
    text.by("state", "gpu_untrusted", "gauge", "GPUs that are not fully trusted, by step.", health)
    nodes = {status.value: 0 for status in NodeStatus}
    for node in state.nodes.values():
        nodes[node.status.value] += 1
    text.by("status", "agent_count", "gauge", "Nodes by status.", nodes)


def tell_pools(text: Text, state: ClusterState, counts: Counts) -> None:
    parts = quota_of(state)
    limit = {pool.value: parts.milli(pool) / WHOLE_MILLI for pool in Pool}
    used = {pool.value: used_milli(state, pool) / WHOLE_MILLI for pool in Pool}
    for pool in Pool:
        name = pool.value
        text.one(f"quota_{name}_limit", "gauge", f"GPUs of the {name} pool by quota.", limit[name])
        text.one(f"quota_{name}_used", "gauge", f"GPUs that the {name} pool holds.", used[name])
    text.by("pool", "pool_gpus_limit", "gauge", "GPUs of a pool by quota.", limit)
    text.by("pool", "pool_gpus_used", "gauge", "GPUs that a pool holds.", used)
    for status, name in ((TaskStatus.PENDING, "waiting"), (TaskStatus.RUNNING, "running")):
        numbers = {pool.value: 0 for pool in Pool}
        for (_, pool_name, _), by_status in counts.items():
            numbers[pool_name] += by_status.get(status, 0)
        text.by("pool", f"pool_tasks_{name}", "gauge", f"Tasks of a pool that are {name}.", numbers)


def tell_tenants(text: Text, loads: Iterable[TenantLoad]) -> None:
    loads = list(loads)
    rest = f"{MAX_TENANTS} tenants have a label, all others are {OTHER}."
    for name, about, values in (
        ("gpus_used", "GPUs that a tenant holds", {load.tenant_id: load.gpus_used for load in loads}),
        ("tasks_running", "Tasks of a tenant that run", {load.tenant_id: load.running for load in loads}),
        ("tasks_waiting", "Tasks of a tenant that wait", {load.tenant_id: load.waiting for load in loads}),
        (
            "gpu_seconds_month",
            "GPU time of a tenant in this calendar month",
            {load.tenant_id: load.gpu_hours * 3_600 for load in loads},
        ),
    ):
        text.by("tenant", f"tenant_{name}", "gauge", f"{about}; {rest}", values)
    limits = {load.tenant_id: float(load.max_gpus) for load in loads if load.max_gpus is not None}
    text.by(
        "tenant", "tenant_gpus_limit", "gauge", "GPUs that a tenant may hold, if that is limited.", limits
    )


def tell_scheduler(text: Text, state: ClusterState, meters: Meters) -> None:
    placed = sum(meters.scheduled.values())
    text.one("scheduler_schedule_total", "counter", "Times a task was placed.", placed)
    about = "Placements that failed: the task waits again."
    text.one("scheduler_schedule_failures", "counter", about, sum(meters.requeued.values()))
    text.by("code", "command_refused_total", "counter", "Commands refused, by reason.", meters.refused)
    about = "Time of a scheduling pass for each task that it placed."
    text.histogram("scheduler_decision_seconds", about, meters.decision)
    text.histogram("scheduler_pass_seconds", "Time of a scheduling pass.", meters.passes)
    about = "Time to decide and apply a command, without scheduling passes."
    text.histogram("scheduler_command_seconds", about, meters.command)
    about = "Time to write a group of events to the journal and to make it durable."
    text.histogram("journal_fsync_seconds", about, meters.fsync)
    text.histogram("journal_group_events", "Events per group.", meters.group_events)
    text.one("journal_bytes_total", "counter", "Bytes written to the journal.", meters.journal_bytes)
    text.one("scheduler_epoch", "gauge", "Starts of a scheduler on this state.", state.epoch)
    about = "Models and commands whose use of memory was learned from runs."
    text.one("learned_memory_estimates", "gauge", about, len(state.estimates))
    text.one("learned_run_times", "gauge", "Kinds of tasks whose run time is known.", len(state.run_times))
