"""The lines around the tables: the head, the banner, the details of the selected row."""

from __future__ import annotations

from typing import Any

from dgpu.cli.formats import clock, duration, listed, memory, one_line, plural, since
from dgpu.cli.live.feed import Lost, Picture
from dgpu.cli.live.rows import bar
from dgpu.cli.live.task_rows import TaskRow
from dgpu.wire import isolation
from dgpu.wire.cluster_answers import GpuAnswer, NodeAnswer, PoolQuota
from dgpu.wire.scheduler_answers import SchedulerList

_STATES = ("idle", "busy", "unconfirmed", "draining", "reserved", "offline", "error")


def summary(picture: Picture) -> list[str]:
    """Two lines: the resources, and their usage. A notice before them, if there is one."""
    nodes = len(picture.nodes)
    ready = sum(node.status == "ready" for node in picture.nodes)
    states = ", ".join(f"{count:,} {state}" for state in _STATES if (count := getattr(picture.gpus, state)))
    first = (
        f"{plural(nodes, 'node')}{'' if ready == nodes else f' ({ready:,} ready)'} · "
        f"{plural(picture.gpus.total, 'GPU')}{': ' + states if states else ''} · "
        f"{picture.running:,} running, {picture.waiting:,} waiting"
    )
    notice = isolation.NOTICES.get(picture.isolation)
    return [
        *([notice] if notice else []),
        *([one_line(about_schedulers(told))] if (told := picture.schedulers) and told.members else []),
        first,
        f"{_loads(picture)} · {_pool('online', picture.quota.online)} · {_pool('batch', picture.quota.batch)}",
    ]


def about_schedulers(told: SchedulerList) -> str:
    """The roles, and the trouble that there is."""
    each = [f"{row.name} {row.role}{f' ({row.trouble})' if row.trouble else ''}" for row in told.schedulers]
    epoch = max(row.epoch for row in told.schedulers)
    healthy = sum(member.healthy for member in told.members)
    engine = told.engine or f"{healthy} of {len(told.members)} members"
    return f"schedulers: {', '.join(each)} · epoch {epoch} · engine: {engine}"


def _loads(picture: Picture) -> str:
    measured = [gpu.utilization_percent for gpu in picture.gpus.gpus if gpu.utilization_percent is not None]
    load = sum(measured) / len(measured) / 100 if measured else None
    known = [gpu for gpu in picture.gpus.gpus if gpu.memory_used_mb is not None]
    total = sum(gpu.memory_total_mb for gpu in known)
    used = sum(gpu.memory_used_mb or 0 for gpu in known) / total if total else None
    return f"load {_gauge(load)} · memory {_gauge(used)}"


def _gauge(share: float | None) -> str:
    return "?" if share is None else f"{bar(share, 8)}{share * 100:3.0f}%"


def _pool(name: str, pool: PoolQuota) -> str:
    return f"{name} {pool.used:g}/{pool.quota}"


def banner(lost: Lost) -> str:
    return (
        f"{lost.words} Lost at {clock(lost.since)}, {duration(since(lost.since))} ago; the data shown are older. "
        f"Retrying every {lost.pause_seconds:g} s."
    )


def about_node(node: NodeAnswer) -> list[str]:
    lines = [
        f"{node.id}: {node.status}",
        f"{plural(node.gpus, 'GPU')} ({', '.join(node.gpu_models)}), {node.gpus_free} free",
    ]
    if node.cpus or node.ram_mb:
        lines.append(f"{node.cpus:g} cpus, {memory(node.ram_mb)} of ram")
    if node.address or node.agent_version:
        lines.append(f"at {node.address or '?'}, agent {node.agent_version or '?'}")
    if node.registered_at:
        lines.append(f"registered {clock(node.registered_at)}")
    if node.offline_since:
        lines.append(f"unreachable since {clock(node.offline_since)}")
    if node.unconfirmed_since:
        lines.append(f"no contact since the scheduler started {clock(node.unconfirmed_since)}")
    if node.draining:
        lines.append(f"takes no new tasks{': ' + node.drain_reason if node.drain_reason else ''}")
    lines.append(f"enforces between users: {', '.join(node.enforced) or 'nothing'}")
    if node.labels:
        lines.append("labels " + listed(f"{name}={value}" for name, value in sorted(node.labels.items())))
    lines.append("tasks " + listed(node.tasks, 12) if node.tasks else "no tasks")
    return list(map(one_line, lines))


def about_gpu(gpu: GpuAnswer) -> list[str]:
    lines = [
        f"{gpu.node}:{gpu.index} {gpu.model}, {gpu.status}",
        gpu.uuid,
    ]
    foreign = f", {memory(gpu.memory_foreign_mb)} foreign" if gpu.memory_foreign_mb else ""
    used = f"{memory(gpu.memory_used_mb) or '?'} used of {memory(gpu.memory_total_mb)}"
    lines.append(f"memory {used}, {memory(gpu.memory_reserved_mb)} reserved{foreign}")
    health = gpu.health
    if health.state != "trusted":
        told = f"{health.state} for {duration(since(health.since))}" if health.since else health.state
        lines.append(f"{told}: {health.evidence}{f' ({health.remark})' if health.remark else ''}")
        if health.needs_person:
            lines.append(f"needs repair, then: dgpu gpus recover {gpu.node}:{gpu.index}")
    if gpu.fault:
        lines.append(gpu.fault)
    if gpu.loaded_models:
        lines.append("loaded " + listed(gpu.loaded_models))
    lines.append("tasks " + listed(gpu.tasks, 12) if gpu.tasks else "no tasks")
    return list(map(one_line, lines))


def about_task(why: dict[str, Any], task: dict[str, Any]) -> list[str]:
    from dgpu.cli.arguments import command_text
    from dgpu.cli.why import page

    lines = [line for line in page(why, task) if line]
    if task["status"] == "running" and task["allocated_gpus"]:
        lines.append("GPUs " + listed(task["allocated_gpu_names"], 16))
    owner = f"tenant {task['tenant_id']}, pool {task['pool']}, priority {task['priority']}"
    if task["attempt"] > 1:
        owner += f", attempt {task['attempt']}"
    lines.append(owner)
    if command := command_text(task["command"]):
        lines.append(f"$ {command}")
    return list(map(one_line, lines))


def before_cancel(task: TaskRow) -> str:
    if task.array_id:
        return f"{plural(task.tasks, 'task')} of it run or wait. They will be stopped or not start."
    return "It is running and will be stopped." if task.place == 0 else "It is waiting and will not start."
