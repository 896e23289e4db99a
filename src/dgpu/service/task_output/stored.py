"""What the store has of an attempt, for readers, who need not know how it is stored."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.task_output.byte_ranges import Range, uncovered


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as far as it is stored here."""

    task_id: TaskId
    attempt: int
    lease_id: LeaseId
    node_id: NodeId
    end: int  # what the attempt has written in all
    kept_until_ms: int  # 0: its node keeps nothing beyond what is stored here
    ranges: tuple[Range, ...]  # stored here, in order, apart from each other

    @property
    def missing(self) -> tuple[Range, ...]:
        return tuple(uncovered(self.ranges, 0, self.end))
