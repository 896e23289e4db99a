"""Where tenants stand among each other. Shares move with every grant and every end, their order hardly ever.

So the queue is not ordered by shares but by standings: two tenants' standings compare as their shares do. Each standing
is the lower end of a range that has the share of nobody else in it. While a share moves within its range, no line of its
tenant has to be listed anew.
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
    """Ranges never overlap. Tenants of the very same share have one range together, of this share alone.

    A tenant that finds its place may raise the standing of another, but never lowers it: only who moves, and has less share
    than before, can come to stand further in front.
    """

    __slots__ = ("_lows", "_tenants")

    def __init__(self) -> None:
        self._lows: list[int] = []  # of all ranges, sorted
        self._tenants: dict[int, dict[TenantId, Account]] = {}  # by the lower end of their range

    def move(self, account: Account) -> None:
        """Its share left its range, or it is new."""
        left = account.standing
        self.leave(account)
        share, lows = account.share, self._lows
        place = bisect_right(lows, share)
        other = next(iter(self._tenants[lows[place - 1]].values())) if place else None
        if other is None or share > other.reach:
            # Nobody's: it takes all there is between its neighbours. But who has more share than before, which happens in
            # the middle of a pass, never comes to stand further in front: its lines are not listed anew for that.
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
        """One that has its range to itself, or stands there already."""
        if low != account.standing:
            reach = account.reach
            self.leave(account)
            self._enter(account, low, reach)
