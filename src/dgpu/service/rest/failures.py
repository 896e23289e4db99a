"""Limits guesses of tokens and codes, by Unix user or by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dgpu.service.rest.origins import problem
from dgpu.wire.answers import Problem

MAX_FAILURES = 10
FAILURE_SECONDS = 60.0
MAX_WATCHED = 1_024


class Peer(NamedTuple):
    """The peer of a connection. `uid` None: not on this machine, or unknown."""

    uid: int | None
    address: str = ""


class Failures:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[int | str, tuple[float, int]] = {}  # since when, how many

    def limited(self, peer: Peer) -> Problem | None:
        since, number = self._counts.get(_key(peer), (0.0, 0))
        if number < MAX_FAILURES or self._clock() - since >= FAILURE_SECONDS:
            return None
        detail = "Too many wrong tokens or codes. Try again in a minute."
        return problem(429, "too_many_failures", "Too many failures", detail)

    def count(self, peer: Peer) -> None:
        key, now = _key(peer), self._clock()
        since, number = self._counts.get(key, (now, 0))
        if now - since >= FAILURE_SECONDS:
            since, number = now, 0
        if key not in self._counts and len(self._counts) >= MAX_WATCHED:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = (since, number + 1)

    def forgive(self, peer: Peer) -> None:
        self._counts.pop(_key(peer), None)


def _key(peer: Peer) -> int | str:
    return peer.address if peer.uid is None else peer.uid
