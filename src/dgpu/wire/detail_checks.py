"""Rules between fields of a task's detail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clash_of(detail: Mapping[str, Any], *, allocation: bool) -> tuple[str, str] | None:
    """The field that does not fit to the others, and why."""
    if "upload" not in detail:
        return None
    if detail.get("workdir"):
        return "workdir", "An upload is unpacked into a new directory; leave out workdir or upload."
    return ("upload", "An allocation runs nothing; leave out upload or allocation.") if allocation else None
