"""The queue is ordered by standings, not by shares: whatever tenants hold, both must say the same."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from dgpu.core.index.account import Account
from dgpu.core.index.standings import Standings
from dgpu.core.model.ids import TenantId

TENANTS = 5
# Small numbers meet often, large ones leave wide ranges; None: the tenant goes.
shares = st.one_of(st.integers(0, 8), st.integers(0, 10**12), st.none())
moves = st.lists(st.tuples(st.integers(0, TENANTS - 1), shares), max_size=60)


@given(moves)
def test_standings_compare_as_shares_do_and_only_who_loses_share_is_lowered(
    moves: list[tuple[int, int | None]],
) -> None:
    standings = Standings()
    accounts: dict[int, Account] = {}
    for number, share in moves:
        account = accounts.setdefault(number, Account(TenantId(f"tenant-{number}")))
        before = {each: other.standing for each, other in accounts.items()}
        rises = False
        if share is None:
            standings.leave(accounts.pop(number))
        else:
            rises, account.share = share > account.share, share
            if not account.standing <= share <= account.reach:
                standings.move(account)
        for each, other in accounts.items():
            assert (each == number and not rises) or other.standing >= before[each]
            assert other.standing <= other.share <= other.reach
        for one, other in product(accounts.values(), repeat=2):
            assert (one.standing < other.standing) is (one.share < other.share)


def test_a_share_that_passes_nobody_keeps_its_standing() -> None:
    standings = Standings()
    first, second = Account(TenantId("first")), Account(TenantId("second"))
    for account, share in ((first, 100), (second, 1_000)):
        account.share = share
        standings.move(account)
    assert first.standing <= 90 and first.reach >= 500
    assert second.standing <= 600 and second.reach >= 10**15
