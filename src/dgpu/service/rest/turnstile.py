"""Lets a few requests begin in each turn of the loop. Tenants take turns: a flood from one tenant delays only itself.

A request that may begin holds nothing: a slow body or a slow node keeps no other request out. A turn of the loop stays
short, so every other request waits for at most a few short turns. The first request of a tenant in a turn does not wait
at all. While a calm tenant is active, turns are shorter still: from its first byte to its answer, its request waits for
several of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dgpu.service.access.principal import Principal

PER_TURN = 8  # about half a millisecond of submits
CALM_PER_TURN = 2  # while one of several active lanes has fewer than that waiting
ACTIVE_SECONDS = 1.0  # how long a lane counts as active after its last request


def lane_of(who: Principal) -> str:
    """All tokens of a tenant share a lane: more tokens get no more turns."""
    return f"user {who.user}" if who.tenants is None else f"tenant {next(iter(who.tenants), '')}"


class Turnstile:
    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._loop = asyncio.get_running_loop()
        self._per_turn = per_turn
        self._places = per_turn  # left in this turn of the loop
        self._begun: set[str] = set()  # lanes with a request that began in this turn
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the first lane has the next turn
        self._is_refill_due = False
        self._active_until: dict[str, float] = {}  # by lane, the longest inactive first

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def enter(self, lane: str) -> None:
        self._refill_soon()
        self._active_until.pop(lane, None)
        self._active_until[lane] = self._loop.time() + ACTIVE_SECONDS
        if lane not in self._waiting and (self._places or lane not in self._begun):
            self._places = max(0, self._places - 1)
            self._begun.add(lane)
            return
        place = self._loop.create_future()
        self._waiting.setdefault(lane, deque()).append(place)
        await place

    def _refill_soon(self) -> None:
        if not self._is_refill_due:
            self._is_refill_due = True
            self._loop.call_soon(self._refill)

    def _refill(self) -> None:
        self._is_refill_due = False
        self._places = self._next_places()
        self._begun.clear()
        while self._places and self._waiting:
            lane = next(iter(self._waiting))
            places = self._waiting.pop(lane)
            place = places.popleft()
            if places:
                self._waiting[lane] = places  # at the end: the next lane comes first
            if not place.done():  # else its request was cancelled
                place.set_result(None)
                self._places -= 1
                self._begun.add(lane)
        if self._begun:  # they count in this turn only
            self._refill_soon()

    def _next_places(self) -> int:
        now = self._loop.time()
        while self._active_until and next(iter(self._active_until.values())) <= now:
            del self._active_until[next(iter(self._active_until))]
        if len(self._active_until) <= 1 or self._per_turn <= CALM_PER_TURN:
            return self._per_turn
        crowds = sum(len(places) >= CALM_PER_TURN for places in self._waiting.values())
        return CALM_PER_TURN if crowds < len(self._active_until) else self._per_turn
