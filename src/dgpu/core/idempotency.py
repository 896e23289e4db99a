"""What is remembered of a request that carried an idempotency key, so that its repetition gets the same answer."""

from __future__ import annotations

import msgspec

from dgpu.core.ids import TaskId


class IdempotencyKey(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    first_id: TaskId
    count: int
    created_at: int
    fingerprint: str = ""
