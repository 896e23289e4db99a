"""The rows of nodes, GPUs and tasks: their columns, filter and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from dgpu.cli.formats import duration, memory, one_line, since
from dgpu.cli.live.task_rows import TaskRow
from dgpu.cli.output import STATUS_STYLES
from dgpu.wire.cluster_answers import GpuAnswer, NodeAnswer

T = TypeVar("T")

_EIGHTHS = " ▏▎▍▌▋▊▉"
BAR_CELLS = 6
_HOT_C = 85
WIDE = 110

STYLES = {**STATUS_STYLES, "stopping": "magenta", "reserved": "yellow"}


class LiveColumn(NamedTuple, Generic[T]):
    title: str
    text: Callable[[T], str]
    rank: Callable[[T], Any]  # to sort by
    right: bool = False
    stretches: bool = False  # takes the remaining width, and shrinks first
    style: Callable[[T], str] = lambda _: ""
    falls: bool = False  # largest first is the useful order
    needs: int = 0  # columns of the screen; left out on a narrower one


class Sheet(NamedTuple, Generic[T]):
    """One pane."""

    name: str
    key: Callable[[T], str]
    columns: Sequence[LiveColumn[T]]
    searched: Callable[[T], str]
    empty: str


def bar(share: float | None, cells: int = BAR_CELLS) -> str:
    if share is None:
        return " " * cells
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells)


def _percent(share: float | None) -> str:
    return "  ? " if share is None else f"{share * 100:3.0f}%"


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def load_style(share: float | None) -> str:
    """Blue, yellow and red also differ in brightness, so the colours are readable with any colour vision."""
    if share is None:
        return "dim"
    return "red" if share > 0.95 else "yellow" if share > 0.8 else "cyan"


def _utilization(gpu: GpuAnswer) -> float | None:
    return None if gpu.utilization_percent is None else gpu.utilization_percent / 100


def _used(gpu: GpuAnswer) -> float | None:
    return _share(gpu.memory_used_mb, gpu.memory_total_mb)


def _gpu_remark(gpu: GpuAnswer) -> str:
    if gpu.health.state == "trusted":
        return gpu.fault
    return f"{gpu.health.state}: {gpu.health.evidence}"


def _temperature(gpu: GpuAnswer) -> str:
    return "" if gpu.temperature_c is None else f"{gpu.temperature_c}°"


GPUS: Sheet[GpuAnswer] = Sheet(
    "GPUs",
    lambda gpu: gpu.uuid,
    (
        LiveColumn("NODE", lambda gpu: gpu.node, lambda gpu: (gpu.node, gpu.index), stretches=True),
        LiveColumn("#", lambda gpu: str(gpu.index), lambda gpu: (gpu.index, gpu.node), right=True),
        LiveColumn("MODEL", lambda gpu: gpu.model, lambda gpu: gpu.model, stretches=True, needs=WIDE),
        LiveColumn(
            "STATUS",
            lambda gpu: gpu.status,
            lambda gpu: gpu.status,
            style=lambda gpu: STYLES.get(gpu.status, ""),
        ),
        LiveColumn(
            "UTIL",
            lambda gpu: f"{bar(_utilization(gpu))} {_percent(_utilization(gpu))}",
            lambda gpu: gpu.utilization_percent if gpu.utilization_percent is not None else -1,
            style=lambda gpu: load_style(_utilization(gpu)),
            falls=True,
        ),
        LiveColumn(
            "MEMORY",
            lambda gpu: (
                f"{bar(_used(gpu))} {memory(gpu.memory_used_mb) or '?':>5}/{memory(gpu.memory_total_mb)}"
            ),
            lambda gpu: _used(gpu) if gpu.memory_used_mb is not None else -1.0,
            style=lambda gpu: load_style(_used(gpu)),
            falls=True,
        ),
        LiveColumn(
            "TEMP",
            _temperature,
            lambda gpu: gpu.temperature_c or 0,
            right=True,
            style=lambda gpu: "red" if (gpu.temperature_c or 0) >= _HOT_C else "",
            falls=True,
        ),
        LiveColumn(
            "POWER",
            lambda gpu: "" if gpu.power_w is None else f"{gpu.power_w}W",
            lambda gpu: gpu.power_w or 0,
            right=True,
            falls=True,
            needs=WIDE,
        ),
        LiveColumn(
            "TASKS", lambda gpu: ",".join(gpu.tasks), lambda gpu: len(gpu.tasks), falls=True, stretches=True
        ),
        LiveColumn("REMARK", _gpu_remark, _gpu_remark, stretches=True, falls=True, needs=WIDE),
    ),
    lambda gpu: (
        f"{gpu.node} {gpu.node}:{gpu.index} {gpu.model} {gpu.status} {gpu.uuid} {gpu.health.state} "
        f"{' '.join(gpu.tasks)}"
    ),
    "No GPU has been registered. Is an agent running?",
)


def _node_use(node: NodeAnswer) -> float | None:
    return _share(node.gpus - node.gpus_free, node.gpus)


def _node_remark(node: NodeAnswer) -> str:
    if node.offline_since:
        return f"unreachable for {duration(since(node.offline_since))}"
    if node.unconfirmed_since:
        return "no contact since the scheduler started"
    return node.drain_reason if node.draining else ""


NODES: Sheet[NodeAnswer] = Sheet(
    "Nodes",
    lambda node: node.id,
    (
        LiveColumn("NODE", lambda node: node.id, lambda node: node.id, stretches=True),
        LiveColumn(
            "STATUS",
            lambda node: node.status,
            lambda node: node.status,
            style=lambda node: STYLES.get(node.status, ""),
        ),
        LiveColumn(
            "GPUS IN USE",
            lambda node: f"{bar(_node_use(node))} {node.gpus - node.gpus_free:>3}/{node.gpus}",
            lambda node: _node_use(node) or 0.0,
            style=lambda _: "cyan",
            falls=True,
        ),
        LiveColumn(
            "FREE", lambda node: str(node.gpus_free), lambda node: node.gpus_free, right=True, falls=True
        ),
        LiveColumn(
            "TASKS", lambda node: str(len(node.tasks)), lambda node: len(node.tasks), right=True, falls=True
        ),
        LiveColumn(
            "MODELS", lambda node: ", ".join(node.gpu_models), lambda node: node.gpu_models, stretches=True
        ),
        LiveColumn(
            "CPUS", lambda node: f"{node.cpus:g}", lambda node: node.cpus, right=True, falls=True, needs=WIDE
        ),
        LiveColumn(
            "RAM",
            lambda node: memory(node.ram_mb),
            lambda node: node.ram_mb,
            right=True,
            falls=True,
            needs=WIDE,
        ),
        LiveColumn("REMARK", _node_remark, _node_remark, stretches=True, falls=True),
    ),
    lambda node: (
        f"{node.id} {node.status} {' '.join(node.gpu_models)} {node.drain_reason} {' '.join(node.tasks)}"
    ),
    "No node has registered. Start an agent: dgpu agent --config F",
)

TASKS: Sheet[TaskRow] = Sheet(
    "Tasks",
    lambda task: task.task_id,
    (
        LiveColumn("ID", lambda task: task.task_id, lambda task: task.number),
        LiveColumn("NAME", lambda task: task.name, lambda task: task.name, stretches=True),
        LiveColumn(
            "STATUS",
            lambda task: task.status,
            lambda task: (task.status == "pending", task.place, task.number),
            style=lambda task: STYLES.get(task.status, ""),
        ),
        LiveColumn(
            "PRI",
            lambda task: str(task.priority),
            lambda task: task.priority_value,
            right=True,
            falls=True,
            needs=80,
        ),
        LiveColumn(
            "GPUS",
            lambda task: task.gpus,
            lambda task: (len(task.gpus), task.gpus),
            right=True,
            falls=True,
            needs=72,
        ),
        LiveColumn(
            "TIME",
            lambda task: duration(since(task.since)) or "starting",
            lambda task: task.since or "9",
            right=True,
        ),
        LiveColumn(
            "TENANT", lambda task: task.tenant_id, lambda task: task.tenant_id, stretches=True, needs=WIDE
        ),
        LiveColumn("POOL", lambda task: task.pool, lambda task: task.pool, needs=WIDE),
        LiveColumn("WHERE OR WHY", lambda task: task.where, lambda task: task.where, stretches=True),
    ),
    lambda task: f"{task.task_id} {task.name} {task.status} {task.tenant_id} {task.pool} {task.where}",
    "No running or waiting tasks.",
)


def chosen(
    rows: Sequence[T], sheet: Sheet[T], words: str, column: LiveColumn[T] | None, *, reverse: bool
) -> list[T]:
    """Rows that contain every word of the filter. Without a sort column, the order stays."""
    wanted = words.lower().split()
    found = [row for row in rows if _holds(sheet.searched(row).lower(), wanted)] if wanted else list(rows)
    if column is not None:
        found.sort(key=column.rank, reverse=reverse)
    return found


def _holds(text: str, wanted: Sequence[str]) -> bool:
    return all(word in text for word in wanted)


def cell(column: LiveColumn[T], row: T) -> str:
    return one_line(column.text(row))
