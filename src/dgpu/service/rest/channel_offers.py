"""Channels that wait for their client: each for one connection, by the user that opened it. And ports of tasks, for any
number of connections of that user.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

from dgpu.core.model.ids import TaskId
from dgpu.service.access.principal import Principal
from dgpu.service.task_channels import Channel

WAIT_S = 30.0
MAX_WAITING = 256
MAX_PORTS = 1_024


class PortOffer(NamedTuple):
    """Each connection to it opens a channel to the run that the task has then."""

    task_id: TaskId
    port: int
    rank: int


class Offers:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Channel, Principal, asyncio.TimerHandle]] = {}
        self._ports: dict[str, tuple[PortOffer, Principal]] = {}  # the last used one is the last

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING

    def add(self, channel: Channel, who: Principal) -> str:
        """Its id cannot be guessed: a web page of another origin could open a WebSocket, too."""
        offer_id = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._expire, offer_id)
        self._waiting[offer_id] = (channel, who, timer)
        return offer_id

    def add_port(self, port: PortOffer, who: Principal) -> str:
        """For any number of connections. The offer that was not used for the longest time makes room."""
        if len(self._ports) >= MAX_PORTS:
            del self._ports[next(iter(self._ports))]
        offer_id = secrets.token_urlsafe(24)
        self._ports[offer_id] = (port, who)
        return offer_id

    def port(self, offer_id: str, who: Principal) -> PortOffer | None:
        port, opener = self._ports.get(offer_id, (None, None))
        if port is None or opener is None or not _is_same(opener, who):
            return None
        self._ports[offer_id] = self._ports.pop(offer_id)
        return port

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
