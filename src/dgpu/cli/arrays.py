"""An array as one row: its state, its progress and its exit code."""

from __future__ import annotations

from typing import Any

from dgpu.cli.output import Row
from dgpu.client.language import told

_MAX_NAMED = 5


def state_of(row: Row) -> str:
    """Of the task, or of the array that the row stands for."""
    array = row.get("array")
    if array is None:
        return str(row["status"])
    for state in ("running", "pending", "failed", "cancelled"):
        if array[state]:
            return state
    return "success"


def progress(array: dict[str, Any]) -> str:
    """`1 failed, 8/20 done, 4 running, 7 waiting`."""
    words = (("cancelled", "cancelled"), ("running", "running"), ("pending", "waiting"))
    parts = [f"{array['failed']:,} failed"] if array["failed"] else []
    parts += [f"{array['success']:,}/{array['count']:,} done"]
    parts += [f"{array[state]:,} {word}" for state, word in words if array[state]]
    return told("text", "array_progress", array, ", ".join(parts))


def result(row: Row) -> str:
    """The progress of an array with the first of its tasks that failed."""
    array = row["array"]
    number = row["array_id"].removeprefix("task-")
    named = [f"{number}_{each['index']}" for each in array["failures"] if each["status"] == "failed"]
    named = named[:_MAX_NAMED]
    if not named:
        return progress(array)
    more = array["failed"] - len(named)
    return f"{progress(array)} (failed: {', '.join(named)}{f' and {more:,} more' if more else ''})"
