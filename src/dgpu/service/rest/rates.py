"""An optional limit of requests per second for each principal, beside the turns that tenants take."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.service.access.principal import Principal
from dgpu.service.rest.origins import problem
from dgpu.wire.answers import Problem

BURST_SECONDS = 5.0  # a script may send that many seconds' worth at once
MAX_WATCHED = 4_096


class Rates:
    """Each principal has a bucket that fills at the rate. A request takes one unit."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second  # 0: no limit
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # units left, and when; the longest unused first

    def limited(self, who: Principal) -> Problem | None:
        if not self._per_second or who.source in {"uid", "open"}:
            return None
        key, now = who.token_id or f"user {who.user}", self._clock()
        full = max(1.0, self._per_second * BURST_SECONDS)
        left, since = self._buckets.pop(key, (full, now))
        left = min(full, left + (now - since) * self._per_second)
        if left >= 1.0:
            left -= 1.0
            refused = None
        else:
            refused = self._refusal(who)
        if len(self._buckets) >= MAX_WATCHED:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (left, now)
        return refused

    def _refusal(self, who: Principal) -> Problem:
        detail = (
            f"{who.user} may send {self._per_second:g} requests a second (auth.requests_per_second). "
            "Try again in a second."
        )
        return problem(429, "too_many_requests", "Too many requests", detail)
