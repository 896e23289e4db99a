"""Notices: messages about one task or one array to the target that the task names."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import TenantId

MAX_UNSENT = 1_000  # of all tenants; beyond it new notices are dropped
MAX_UNSENT_OF_TENANT = 200


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of the task, and no value of a target: the name is looked up again for each attempt to send."""

    id: str
    to: str  # the name of a target
    tenant_id: TenantId
    event: str  # start | end
    task_id: str
    name: str = ""
    status: str = ""
    node: str = ""
    exit_code: int | None = None
    reason: str = ""
    error: str = ""
    count: int = 0  # tasks of an array; 0: a single task
    failed: int = 0
    started_at: int = 0
    finished_at: int = 0
    at: int = 0
    attempts: int = 0  # that failed

    @property
    def summary(self) -> str:
        called = f" ({self.name})" if self.name else ""
        if self.count:
            what = f"array {self.task_id}{called}"
            return f"{what} began" if self.event == "start" else f"{what} ended: {self._tally}"
        what = f"{self.task_id}{called}"
        if self.event == "start":
            return f"{what} started on {self.node}"
        because = f": {self.error or self.reason}" if self.error or self.reason else ""
        return f"{what} ended with {self.status}{because}"

    @property
    def _tally(self) -> str:
        return f"{self.failed:,} of {self.count:,} tasks did not succeed" if self.failed else "all succeeded"
