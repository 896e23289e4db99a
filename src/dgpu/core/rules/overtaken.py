"""Which lines a task would overtake: they come before it in order and wait for the quota that it is about to take.

The answer depends on the state alone. A line that sleeps for another reason counts, too, if it has no quota now.
"""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.index.account import Account, PoolUse
from dgpu.core.index.bookings import ahead_of
from dgpu.core.index.line import Claim, Line
from dgpu.core.rules.access import access_of, bookings_in_order
from dgpu.core.rules.admission import free_milli, limited_quota, lines_of, pool_quota, tenant_quota
from dgpu.core.rules.reservations import slot_level
from dgpu.core.state import ClusterState


def overtaken(state: ClusterState, line: Line, at: int) -> Iterator[Line]:
    """In order: the lines before this line that may get a reservation and wait for quota of its pool or tenant. The
    state must not change during the iteration.
    """
    if not line.claim.milli:
        return
    reserved = ahead_of(line, bookings_in_order(state, at) if state.reservations else ())
    short = _short_of_pool(state, line.pool, reserved.pool_milli)
    if line.account.limited:
        short += _short_of_tenant(line.account, reserved.tenant)
    above = slot_level(state, at)
    before = dict.fromkeys(
        [other for other in short if other.level(other.head) > above and other.precedes(line)]
    )
    for other in sorted(before, key=lambda each: each.turn_of(each.head)):
        if _waits_for_quota(state, line, other, at):
            yield other


def _waits_for_quota(state: ClusterState, line: Line, other: Line, at: int) -> bool:
    """Quota of the pool or the tenant of `line` is too little for the head of `other`."""
    access = access_of(state, other, other.head, at)
    if other.pool is line.pool and pool_quota(state, other, other.claim, access) is not None:
        return True
    return other.account is line.account and tenant_quota(other, other.claim, access) is not None


def _short_of_pool(state: ClusterState, pool: PoolUse, reserved_milli: int) -> list[Line]:
    """At least the lines for whose heads the pool has too little quota. All reservations count as used here."""
    left = free_milli(state, pool) - reserved_milli
    return [other for other in pool.ready if other.claim.milli > left]


def _short_of_tenant(account: Account, reserved: Claim) -> list[Line]:
    """At least the lines for whose heads the tenant has too little. All reservations count as used here."""
    return [
        other
        for other in lines_of(account)
        if other.head and limited_quota(account, other.claim, reserved) is not None
    ]
