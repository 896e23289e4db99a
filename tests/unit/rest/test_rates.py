"""The limit of requests per second."""

from __future__ import annotations

from dgpu.service.access.principal import Principal, owner
from dgpu.service.rest import rates
from dgpu.service.rest.rates import BURST_SECONDS, Rates
from dgpu.wire.roles import Role


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def user(name: str = "ann", token_id: str = "a") -> Principal:
    return Principal(user=name, role=Role.USER, source="token", tenants=("lab",), token_id=token_id)


def admitted(limits: Rates, who: Principal, requests: int) -> int:
    return sum(limits.limited(who) is None for _ in range(requests))


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Time()
    limits = Rates(10, clock)
    assert admitted(limits, user(), 100) == 10 * BURST_SECONDS
    clock.now += 1
    assert admitted(limits, user(), 100) == 10


def test_a_pause_fills_the_burst_again_and_no_more() -> None:
    clock = Time()
    limits = Rates(10, clock)
    admitted(limits, user(), 100)
    clock.now += 3_600
    assert admitted(limits, user(), 100) == 10 * BURST_SECONDS


def test_every_token_has_its_own_rate() -> None:
    limits = Rates(10, Time())
    admitted(limits, user(token_id="a"), 100)
    assert admitted(limits, user(token_id="b"), 1) == 1


def test_the_refusal_names_the_key_and_the_rate() -> None:
    limits = Rates(0.1, Time())
    assert limits.limited(user()) is None
    refusal = limits.limited(user())
    assert (refusal.status, refusal.code) == (429, "too_many_requests")
    assert "ann may send 0.1 requests a second (auth.requests_per_second)" in refusal.detail


def test_the_schedulers_own_user_has_no_limit() -> None:
    """Its requests are those of an administrator at the machine, and of `dgpu up`."""
    assert admitted(Rates(0.1, Time()), owner("root", "uid"), 1_000) == 1_000


def test_without_a_rate_nothing_is_counted() -> None:
    limits = Rates(0, Time())
    assert admitted(limits, user(), 1_000) == 1_000
    assert limits._buckets == {}


def test_the_memory_of_principals_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(rates, "MAX_WATCHED", 3)
    limits = Rates(1, Time())
    for number in range(10):
        limits.limited(user(token_id=str(number)))
    assert list(limits._buckets) == ["7", "8", "9"]
