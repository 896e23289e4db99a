"""When a request is sent again, and the pause before it."""

from __future__ import annotations

import random
from collections.abc import Iterator

RETRIES = 4
FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 2.0
MAX_RETRY_AFTER_SECONDS = 10.0  # if a server asks for a longer pause, the request is not repeated


def is_worth_repeating(status: int, body: bytes) -> bool:
    """Old idempotency keys expire every second; if all of them are young, the refusal is final."""
    return status == 503 or (status == 429 and b'"too_many_keys"' in body)


def asked_seconds(retry_after: str | None) -> int:
    """`Retry-After` in seconds makes the pause longer, never shorter. A date is ignored."""
    return int(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0


def pauses(retries: int) -> Iterator[float]:
    """Doubling, with jitter: clients that lost the same server do not return at the same time."""
    for attempt in range(retries):
        longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(attempt, 10))
        yield longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter needs no secure source
