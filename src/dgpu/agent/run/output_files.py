"""Which files of the node get a copy of a run's output."""

from __future__ import annotations

from typing import Any

from dgpu.agent.frames import CONTAINER_FILES_PROTOCOL, FILES_PROTOCOL
from dgpu.agent.run.containers import NotHereError
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import NodeId, parse_task_id, task_name
from dgpu.core.model.task import TaskDetail
from dgpu.wire.file_patterns import NODE_PATTERN, filled_in
from dgpu.wire.ranks import attempt_of, rank_of


def files_order(
    order: RunOrder, detail: TaskDetail, node_id: NodeId, keeper_protocol: int
) -> dict[str, Any] | None:
    """As `agent.output_files` reads it. Raises NotHereError.

    Of several nodes, only the first one writes a file without the node in its name: on a shared file system, it would
    be the same file.
    """
    patterns = {"output": detail.output_file, "errors": detail.error_file}
    if not any(patterns.values()):
        return None
    if keeper_protocol < (CONTAINER_FILES_PROTOCOL if detail.image else FILES_PROTOCOL):
        raise NotHereError("this node's keeper is older and writes no output files; it ends with its tasks")
    array_id = parse_task_id(order.env.get("DGPU_ARRAY_ID", ""))
    values = {
        "j": str(order.task_id),
        "A": str(order.task_id if array_id is None else array_id),
        "a": order.env.get("DGPU_ARRAY_INDEX", "0"),
        "x": detail.name or task_name(order.task_id),
        "N": node_id,
    }
    written = {
        name: filled_in(pattern, values)
        for name, pattern in patterns.items()
        if pattern and (not rank_of(order.attempt) or NODE_PATTERN in pattern.replace("%%", ""))
    }
    if detail.image and any(".." in path.split("/") for path in written.values()):
        raise ValueError("its output files would be outside of its directory")
    return {**written, "anew": attempt_of(order.attempt) == 1} if written else None
