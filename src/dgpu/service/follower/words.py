"""Messages between scheduler and follower. Separate, so that the scheduler need not import the follower's code."""

from __future__ import annotations

import msgspec

from dgpu.journal.archive import Retention
from dgpu.service.history.audit_rows import AuditLimits
from dgpu.service.history.past_words import Fill
from dgpu.service.results.file import ResultLimits
from dgpu.service.telemetry.tiers import MAX_AGE_MS, MAX_BYTES, Batch
from dgpu.wire.questions import Question

FOLLOWER_LOCK = "follower.lock"
EXIT_CANNOT_FOLLOW = 3  # the journal lacks committed groups
FROM_NEWEST = "from-newest"


class FollowerSettings(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_interval_ms: int = 30_000
    retention: Retention = Retention()
    telemetry_bytes: int = MAX_BYTES
    telemetry_age_ms: int = MAX_AGE_MS
    audit: AuditLimits = AuditLimits()
    results: ResultLimits = ResultLimits()
    digest_groups: int = 0  # every so many groups, the fingerprint of the state is told; 0: never


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: int
    question: Question


class FillOrder(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    fill: Fill


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the scheduler."""

    committed: int | None = None
    stop: bool = False
    final_snapshot: bool = False
    ask: Ask | None = None
    fill: FillOrder | None = None  # rows for the history, from another scheduler
    remake_history: bool = False  # a reader found it damaged
    snapshot: bool = False  # write one now: journal files that it would replace are gone
    samples: Batch | None = None  # of all GPUs; stored in the telemetry file, which no replay touches
