"""Rules between fields of a task's detail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpu.core.model.task import WHOLE_MILLI

_ESTIMATED = ("model_name", "task_type", "structure_n_atoms")


def clash_of(
    detail: Mapping[str, Any], values: Mapping[str, Any], *, allocation: bool
) -> tuple[str, str] | None:
    """The field that does not fit to the others, and why."""
    if unshared := _sharing_misfit(values, detail):
        return unshared
    nodes = values.get("nodes", 1)
    if detail.get("terminal") and (why := _no_terminal(allocation=allocation, nodes=nodes)):
        return "terminal", why
    if detail.get("ports") and (why := _no_ports(allocation=allocation)):
        return "ports", why
    if (name := next((each for each in ("output_file", "error_file") if each in detail), "")) and (
        why := _no_files(detail, allocation=allocation)
    ):
        return name, why
    if "upload" not in detail:
        return None
    if detail.get("workdir"):
        return "workdir", "An upload is unpacked into a new directory; leave out workdir or upload."
    return ("upload", "An allocation runs nothing; leave out upload or allocation.") if allocation else None


def _no_files(detail: Mapping[str, Any], *, allocation: bool) -> str:
    if detail.get("image") and (why := _misplaced(detail)):
        return why
    if detail.get("terminal"):
        return "A task with a terminal has no output files; leave out the file or terminal."
    return "An allocation runs nothing and has no output." if allocation else ""


def _no_ports(*, allocation: bool) -> str:
    return "An allocation runs nothing and has no ports." if allocation else ""


def _misplaced(detail: Mapping[str, Any]) -> str:
    """A path of the node would lead out of the container."""
    paths = [detail[name] for name in ("output_file", "error_file") if name in detail]
    if any(path.startswith("/") or ".." in path.split("/") for path in paths):
        return "Output files of a container are in its own directory: give a relative path without `..`."
    if detail.get("workdir"):
        return "Output files of a container are in its own directory; leave out the file or workdir."
    return ""


def _no_terminal(*, allocation: bool, nodes: int) -> str:
    if nodes != 1:
        return "A task over several nodes has no terminal; leave out terminal, or use one node."
    return "An allocation runs nothing and has no terminal." if allocation else ""


def _sharing_misfit(values: Mapping[str, Any], detail: Mapping[str, Any]) -> tuple[str, str] | None:
    """Rules between fields. A share below 1 implies shared."""
    if "shared" not in values and "share_milli" not in values:
        return None
    share = values.get("share_milli", WHOLE_MILLI)
    shared = values.get("shared", share < WHOLE_MILLI)
    if not shared:
        return ("shared", "A gpu_share below 1 implies shared.") if share < WHOLE_MILLI else None
    if values.get("gpus", 1) != 1 or values.get("nodes", 1) != 1:
        return "gpu_count", "Expected 1: a shared task uses one GPU."
    told = (
        values.get("gpu_memory_mb") or "share_milli" in values or any(name in detail for name in _ESTIMATED)
    )
    if told:
        return None
    return (
        "gpu_memory_mb",
        "Required with shared: gpu_memory_mb, gpu_share, or a model_name to estimate from.",
    )
