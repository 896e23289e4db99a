"""Tasks as Slurm shows jobs. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from dgpu.cli.arguments import command_text
from dgpu.cli.formats import moment

if TYPE_CHECKING:
    from dgpu.wire.answers import TaskAnswer

STATES = {
    "PENDING": "PD", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "FAILED": "F", "TIMEOUT": "TO",
    "CANCELLED": "CA", "OUT_OF_MEMORY": "OOM", "NODE_FAIL": "NF",
}  # fmt: skip
_FAILURES = {"timeout": "TIMEOUT", "out_of_memory": "OUT_OF_MEMORY", "node_lost": "NODE_FAIL"}
_ENDS = {"success": "COMPLETED", "cancelled": "CANCELLED", "pending": "PENDING"}


def job_id(task: TaskAnswer) -> str:
    number = task.task_id.removeprefix("task-")
    if task.array_id is None:
        return number
    return f"{task.array_id.removeprefix('task-')}_{task.array_index}"


def state(task: TaskAnswer) -> str:
    if task.status == "running":
        return "COMPLETING" if task.cancelling else "RUNNING"
    if task.status == "failed":
        return _FAILURES.get(task.reason, "FAILED")
    return _ENDS[task.status]


def state_names(text: str) -> set[str]:
    """Full names of states, from names or short forms. Unknown ones are refused."""
    by_code = {code: name for name, code in STATES.items()}
    names = {word.strip().upper() for word in text.split(",") if word.strip()}
    unknown = {name for name in names if name not in STATES and name not in by_code and name != "ALL"}
    if unknown:
        from dgpu.cli.failures import CliFailure

        raise CliFailure(f"state {', '.join(sorted(unknown))} is not known; states: {', '.join(STATES)}")
    return set(STATES) if "ALL" in names else {by_code.get(name, name) for name in names}


def user(task: TaskAnswer) -> str:
    return task.labels.get("user", "")


def clock(seconds: float | None) -> str:
    """`1-02:03:04`, `2:03:04` or `3:04`."""
    if seconds is None:
        return "UNLIMITED"
    whole = int(max(0, seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{left:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def time_used(task: TaskAnswer, now: datetime) -> float:
    started = moment(task.started_at)
    if started is None:
        return 0
    return ((moment(task.finished_at) or now) - started).total_seconds()


def instant(value: str | None) -> str:
    """Local time without a zone, as Slurm writes it."""
    found = moment(value)
    return "Unknown" if found is None else found.astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def place_or_reason(task: TaskAnswer) -> str:
    if task.status == "pending":
        return f"({task.waiting or 'Priority'})"
    return ",".join(task.allocated_nodes)


def gres(task: TaskAnswer) -> str:
    if not task.gpu_count:
        return "N/A"
    return ":".join(["gres/gpu", *task.gpu_model[:1], str(task.gpu_count)])


def exit_code(task: TaskAnswer) -> str:
    code = task.exit_code or 0
    return f"{code}:0" if code >= 0 else f"0:{-code}"


def command(task: TaskAnswer) -> str:
    return command_text(task.command) or "(null)"
