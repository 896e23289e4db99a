"""Rules of scripts, and of tasks of one batch that wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpu.core.model.dependencies import of_entry


def misfit(values: Mapping[str, Any], detail: Mapping[str, Any], entry: int) -> tuple[str, str] | None:
    """The field that contradicts another one, and why. `entry`: the number of the task in its batch."""
    if "script" in detail and type(detail.get("command")) is not tuple:
        return "command", "Required with script: a list, the name of the script and its arguments."
    after = values.get("after", ())
    if after and after[0].task_id <= of_entry(entry):  # sorted: the latest entry first
        return "after", "Expected an entry before this task in the same batch."
    return None
