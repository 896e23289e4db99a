"""The stored part of an attempt's output, for readers, without details of the storage."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.task_output.byte_ranges import Range, uncovered


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of an attempt as far as it is stored here."""

    task_id: TaskId
    attempt: int
    lease_id: LeaseId
    node_id: NodeId
    end: int  # total size of the attempt's output
    kept_until_ms: int  # 0: its node keeps only what is stored here
    ranges: tuple[Range, ...]  # stored here, sorted, without overlaps

    @property
    def missing(self) -> tuple[Range, ...]:
        return tuple(uncovered(self.ranges, 0, self.end))
