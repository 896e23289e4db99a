"""What attempts used: one row for each lease, beside its row in `attempts`."""

from __future__ import annotations

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import TaskId
from dgpu.service.history.reader import MAX_ROWS, History

_SELECT = "SELECT * FROM attempt_usage WHERE task_id = :task ORDER BY lease_id DESC LIMIT :most"


def usage_by_lease(history: History, task_id: TaskId) -> dict[int, AttemptUsage]:
    """Blocks."""
    rows = history.rows(_SELECT, {"task": task_id, "most": MAX_ROWS})
    return {
        row["lease_id"]: AttemptUsage(**{name: row[name] for name in AttemptUsage.__struct_fields__})
        for row in rows
    }
