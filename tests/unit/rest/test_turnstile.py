"""A flood of requests delays only its own tenant."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.service.access.principal import Principal, owner
from dgpu.service.rest import turnstile
from dgpu.service.rest.turnstile import Turnstile, lane_of
from dgpu.wire.roles import Role


class Requests:
    """Requests at a turnstile, and the order in which they began."""

    def __init__(self, turnstile: Turnstile) -> None:
        self.turnstile = turnstile
        self.begun: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, lane: str, count: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._begin(lane)) for _ in range(count)]

    async def _begin(self, lane: str) -> None:
        await self.turnstile.enter(lane)
        self.begun.append(lane)

    async def end(self) -> list[str]:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.begun


async def test_a_calm_tenant_begins_after_a_few_requests_of_a_flood() -> None:
    requests = Requests(Turnstile(per_turn=2))
    requests.ask("flood", 100)
    await asyncio.sleep(0)  # all of them are at the turnstile
    requests.ask("calm")
    begun = await requests.end()
    assert begun.index("calm") <= 6
    assert begun.count("flood") == 100


async def test_tenants_take_turns() -> None:
    requests = Requests(Turnstile(per_turn=1))
    for lane in ("a", "b", "c"):
        requests.ask(lane, 3)
    assert await requests.end() == ["a", "b", "c"] * 3


async def turns_of(requests: Requests, count: int = 6) -> list[str]:
    """The requests that begin in each turn of the loop, after the first turn, sorted."""
    found: list[str] = []
    while len(found) <= count:
        before = len(requests.begun)
        await asyncio.sleep(0)
        found += ["".join(sorted(requests.begun[before:]))] if requests.begun[before:] else []
    await requests.end()
    return found[1:]


async def test_fewer_requests_of_a_flood_begin_in_a_turn_while_a_calm_tenant_is_active() -> None:
    requests = Requests(Turnstile(per_turn=8))
    requests.ask("c")
    requests.ask("f", 100)
    assert await turns_of(requests) == ["ff"] * 6


async def test_a_tenant_that_is_alone_keeps_long_turns() -> None:
    requests = Requests(Turnstile(per_turn=8))
    requests.ask("f", 100)
    assert await turns_of(requests) == ["f" * 8] * 6


async def test_tenants_with_crowds_share_long_turns() -> None:
    requests = Requests(Turnstile(per_turn=8))
    requests.ask("a", 100)
    requests.ask("b", 100)
    assert await turns_of(requests) == ["aaaabbbb"] * 6


async def test_a_tenant_that_was_calm_and_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "ACTIVE_SECONDS", 0.0)
    requests = Requests(Turnstile(per_turn=8))
    requests.ask("c")
    requests.ask("f", 100)
    assert await turns_of(requests) == ["f" * 8] * 6


def waits(turnstile: Turnstile, lane: str) -> bool:
    try:
        turnstile.enter(lane).send(None)
    except StopIteration:
        return False
    return True


async def test_a_request_beside_few_others_does_not_wait() -> None:
    assert not waits(Turnstile(per_turn=2), "a")


async def test_the_first_request_of_a_tenant_in_a_turn_never_waits() -> None:
    """Only a tenant with several requests at once notices the turnstile."""
    turnstile = Turnstile(per_turn=2)
    assert [waits(turnstile, "flood") for _ in range(3)] == [False, False, True]
    assert [waits(turnstile, "calm") for _ in range(2)] == [False, True]


async def test_a_lane_whose_request_waited_has_begun_too() -> None:
    turnstile = Turnstile(per_turn=1)
    assert [waits(turnstile, "flood") for _ in range(2)] == [False, True]
    await asyncio.sleep(0)  # the second one begins
    assert waits(turnstile, "flood")


async def test_a_request_after_a_crowd_does_not_wait() -> None:
    requests = Requests(Turnstile(per_turn=1))
    requests.ask("a", 2)
    await requests.end()
    await asyncio.sleep(0)
    assert not waits(requests.turnstile, "a")


async def test_a_cancelled_request_takes_no_place() -> None:
    requests = Requests(Turnstile(per_turn=1))
    requests.ask("a", 3)
    await asyncio.sleep(0)
    requests.tasks[1].cancel()
    assert await requests.end() == ["a", "a"]
    assert requests.turnstile.waiting == 0


def test_all_tokens_of_a_tenant_share_a_lane() -> None:
    """Otherwise a tenant with ten tokens had ten turns."""
    ann = Principal(user="ann", role=Role.USER, source="token", tenants=("lab", "other"), token_id="a")
    bob = Principal(user="bob", role=Role.VIEWER, source="token", tenants=("lab",), token_id="b")
    assert lane_of(ann) == lane_of(bob) != lane_of(owner("lab", "uid"))
