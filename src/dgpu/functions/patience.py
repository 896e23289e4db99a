"""Outages of the scheduler, as a program that waits for functions sees them: its calls continue, so it waits too.

The client itself repeats a request for about 1.5 s. A restart takes longer on a busy machine, and the loss of a machine
with a standby takes several seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from dgpu.client.errors import Unreachable

if TYPE_CHECKING:
    from dgpu.client.asynchronous import AsyncClient
    from dgpu.client.sync import Client

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 2.0


class Patience:
    """One request that is repeated while no scheduler answers. The request must be safe to repeat."""

    def __init__(self, client: Client | AsyncClient, until: float | None) -> None:
        self._client = client
        self._end = min(time.monotonic() + PATIENCE_SECONDS, float("inf") if until is None else until)
        self._pause = _FIRST_PAUSE_SECONDS

    def pause_after(self, error: Unreachable) -> float:
        """Raises `error` if the time is up, or if no scheduler ever answered: a wrong address is told at once."""
        left = self._end - time.monotonic()
        if self._client.answered_by is None or left <= 0:
            raise error
        pause, self._pause = min(self._pause, left), min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return pause


def patiently(client: Client, ask: Callable[[], T], until: float | None = None) -> T:
    """`until`: the end of the caller's own time limit, by the monotonic clock."""
    patience = Patience(client, until)
    while True:
        try:
            return ask()
        except Unreachable as error:
            time.sleep(patience.pause_after(error))


async def patiently_async(client: AsyncClient, ask: Callable[[], Awaitable[T]]) -> T:
    patience = Patience(client, None)
    while True:
        try:
            return await ask()
        except Unreachable as error:
            await asyncio.sleep(patience.pause_after(error))
