"""The order of tenants. Shares change with every grant and every end, but their order rarely changes.

So the queue is ordered by standings, not by shares: two standings compare as the shares do. Each standing is the lower
end of a range that contains no other tenant's share. While a share moves within its range, the lines of its tenant keep
their entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dgpu.core.index.account import Account
    from dgpu.core.model.ids import TenantId

NOWHERE: Final = -1  # no share is below 0
_NO_END: Final = 1 << 200  # more than any share


class Standings:
    """Ranges never overlap. Tenants with exactly the same share have one common range, which holds only this share.

    Moving a tenant may raise the standing of another tenant, but never lowers it. Only a tenant that moves with a
    smaller share can move ahead in the order.
    """

    __slots__ = ("_lows", "_tenants")

    def __init__(self) -> None:
        self._lows: list[int] = []  # the lower ends of all ranges, sorted
        self._tenants: dict[int, dict[TenantId, Account]] = {}  # by the lower end of their range

    def move(self, account: Account) -> None:
        """The share left its range, or the tenant is new."""
        left = account.standing
        self.leave(account)
        share, lows = account.share, self._lows
        place = bisect_right(lows, share)
        other = next(iter(self._tenants[lows[place - 1]].values())) if place else None
        if other is None or share > other.reach:
            # The range is free: the tenant takes all of it between its neighbours. But a tenant whose share grew, as in
            # the middle of a pass, never moves ahead: its lines would have to be listed again.
            low = 0 if other is None else other.reach + 1
            low = max(low, left) if left < share else low
            self._enter(account, low, lows[place] - 1 if place < len(lows) else _NO_END)
        elif share > other.share:
            cut = (other.share + share) // 2
            reach, other.reach = other.reach, cut
            self._enter(account, cut + 1, reach)
        elif share < other.share:
            cut, low = (other.share + share) // 2, other.standing
            self._raise(other, cut + 1)
            self._enter(account, low, cut)
        else:
            self._raise(other, share)
            other.reach = share
            self._enter(account, share, share)

    def leave(self, account: Account) -> None:
        low = account.standing
        if low == NOWHERE:
            return
        tenants = self._tenants[low]
        del tenants[account.tenant_id]
        if not tenants:
            del self._tenants[low]
            del self._lows[bisect_left(self._lows, low)]
        account.standing = account.reach = NOWHERE

    def _enter(self, account: Account, low: int, reach: int) -> None:
        account.standing, account.reach = low, reach
        tenants = self._tenants.get(low)
        if tenants is None:
            tenants = self._tenants[low] = {}
            self._lows.insert(bisect_left(self._lows, low), low)
        tenants[account.tenant_id] = account

    def _raise(self, account: Account, low: int) -> None:
        """The tenant has its range to itself, or is at this standing already."""
        if low != account.standing:
            reach = account.reach
            self.leave(account)
            self._enter(account, low, reach)
