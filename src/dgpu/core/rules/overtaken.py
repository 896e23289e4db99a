"""Which lines a task would overtake: they come before it in order and wait for the quota that it is about to take.

The answer depends on the state alone. A line that sleeps for another reason counts, too, if it has no quota now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dgpu.core.index.line import Line
from dgpu.core.rules.access import access_of, bookings_in_order
from dgpu.core.rules.admission import free_milli, lines_of, pool_quota, tenant_quota
from dgpu.core.rules.reservations import slot_level
from dgpu.core.state import ClusterState


def overtaken(state: ClusterState, line: Line, at: int) -> Iterator[Line]:
    """In order: the lines before this line that may get a reservation and wait for quota of its pool or tenant. The
    state must not change during the iteration.
    """
    if not line.claim.milli:
        return
    turn, above = line.turn_of(line.head), slot_level(state, at)
    before = []
    for other in {**dict.fromkeys(_short_of_pool(state, line, at)), **dict.fromkeys(_short_of_tenant(line))}:
        place = other.turn_of(other.head)
        if place < turn and -place[0] > above:
            before.append((place, other))
    before.sort(key=lambda each: each[0])
    for _, other in before:
        if _waits_for_quota(state, line, other, at):
            yield other


def _waits_for_quota(state: ClusterState, line: Line, other: Line, at: int) -> bool:
    """Quota of the pool or the tenant of `line` is too little for the head of `other`."""
    access = access_of(state, other, other.head, at)
    if other.pool is line.pool and pool_quota(state, other, other.claim, access) is not None:
        return True
    return other.account is line.account and tenant_quota(other, other.claim, access) is not None


def _short_of_pool(state: ClusterState, line: Line, at: int) -> Iterable[Line]:
    """At least the lines for whose heads the pool has too little quota. All reservations count as used here."""
    pool = line.pool
    left = free_milli(state, pool)
    for booking in bookings_in_order(state, at) if state.reservations else ():
        if booking.line.pool is pool:
            left -= booking.line.claim.milli
    return [other for other in pool.ready if other.claim.milli > left]


def _short_of_tenant(line: Line) -> Iterable[Line]:
    if not line.account.limited:
        return ()
    return [other for other in lines_of(line.account) if other.head]
