"""How often reservations are looked for."""

from __future__ import annotations

from dgpu.core.bookings import Bookings


def test_after_a_look_in_vain_nobody_looks_for_a_second_unless_somebody_comes() -> None:
    bookings = Bookings()
    assert not bookings.rests(5_000, 7), "nobody has looked yet"
    bookings.fruitless = (5_000, 7)
    assert bookings.rests(5_000, 7)
    assert bookings.rests(5_999, 7)
    assert not bookings.rests(6_000, 7)
    assert not bookings.rests(5_001, 8), "a task came"
    assert not bookings.rests(4_999, 7), "a clock that was set back holds nobody up"
    assert bookings.copy().rests(5_001, 7)
