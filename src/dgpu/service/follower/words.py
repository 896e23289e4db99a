"""What scheduler and follower say to each other. Apart from the follower, whose work the scheduler need not import."""

from __future__ import annotations

import msgspec

from dgpu.journal.archive import Retention
from dgpu.service.telemetry.tiers import MAX_AGE_MS, MAX_BYTES, Batch
from dgpu.wire.questions import Question

FOLLOWER_LOCK = "follower.lock"
EXIT_CANNOT_FOLLOW = 3  # the journal lacks groups that were committed
FROM_NEWEST = "from-newest"


class FollowerSettings(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_interval_ms: int = 30_000
    retention: Retention = Retention()
    telemetry_bytes: int = MAX_BYTES
    telemetry_age_ms: int = MAX_AGE_MS


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: int
    question: Question


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the scheduler."""

    committed: int | None = None
    stop: bool = False
    final_snapshot: bool = False
    ask: Ask | None = None
    remake_history: bool = False  # who reads it found it damaged
    snapshot: bool = False  # write one now: files that it would stand for are gone
    samples: Batch | None = None  # of all cards; goes to the telemetry file, which no replay touches
