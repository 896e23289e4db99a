"""Sorted entries in blocks are a sorted list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dgpu.core.index.ordered import Ordered


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=1_500), st.integers(0, 55))
@settings(max_examples=60, deadline=None)
def test_ordered_is_a_sorted_list(steps, probe) -> None:
    ordered: Ordered[int] = Ordered()
    plain: dict[str, int] = {}
    for amount, number in steps * 2:
        name = f"{number}:{amount % 17}"
        if name in plain:
            ordered.remove(plain.pop(name), name)
        else:
            plain[name] = amount
            ordered.add(amount, name, amount)
    expected = sorted(plain.values())
    tail = [amount for amount in expected if amount >= probe]
    assert list(ordered.all_from(0)) == expected
    assert list(ordered.all_from(probe)) == tail
    assert ordered.first_from(probe) == (tail[0] if tail else None)
    assert bool(ordered) == bool(expected)
    if expected:
        assert ordered.last() == expected[-1]


def test_ordered_splits_and_shrinks() -> None:
    ordered: Ordered[int] = Ordered()
    for number in range(5_000):
        ordered.add(number * 7 % 5_000, f"{number:05}", number)
    for number in range(0, 5_000, 2):
        ordered.remove(number * 7 % 5_000, f"{number:05}")
    assert list(ordered.all_from(0)) == sorted(range(1, 5_000, 2), key=lambda number: number * 7 % 5_000)
    for number in range(1, 5_000, 2):
        ordered.remove(number * 7 % 5_000, f"{number:05}")
    assert not ordered
    assert ordered.first_from(0) is None


def test_ordered_shrinks_from_its_end() -> None:
    """Whole blocks are emptied one after the other. Those before them still tell where an entry belongs."""
    ordered: Ordered[int] = Ordered()
    for number in range(2_000):
        ordered.add(number, "", number)
    for number in range(1_999, 499, -1):
        ordered.remove(number, "")
        assert ordered.first_from(number - 1) == ordered.last() == number - 1
    for number in range(500, 2_000):
        ordered.add(number, "", number)
    assert list(ordered.all_from(0)) == [*range(2_000)]
