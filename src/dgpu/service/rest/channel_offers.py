"""Channels that are open to a node and wait for their client: each for one connection, by the user that opened it."""

from __future__ import annotations

import asyncio
import secrets

from dgpu.service.access.principal import Principal
from dgpu.service.task_channels import Channel

WAIT_S = 30.0
MAX_WAITING = 256


class Offers:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Channel, Principal, asyncio.TimerHandle]] = {}

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING

    def add(self, channel: Channel, who: Principal) -> str:
        """Its id cannot be guessed: a web page of another origin could open a WebSocket, too."""
        offer_id = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._expire, offer_id)
        self._waiting[offer_id] = (channel, who, timer)
        return offer_id

    def claim(self, offer_id: str, who: Principal) -> Channel | None:
        channel, opener, timer = self._waiting.get(offer_id, (None, None, None))
        if channel is None or opener is None or timer is None or not _is_same(opener, who):
            return None
        del self._waiting[offer_id]
        timer.cancel()
        return channel

    def _expire(self, offer_id: str) -> None:
        channel, _, _ = self._waiting.pop(offer_id)
        channel.close()


def _is_same(opener: Principal, who: Principal) -> bool:
    return (opener.user, opener.role, opener.tenants) == (who.user, who.role, who.tenants)
