"""Connections to programs of tasks that wait a moment for the next request. A new one costs a look at the node."""

from __future__ import annotations

import asyncio
from typing import Final

from dgpu.core.model.ids import LeaseId
from dgpu.service.proxy.upstream import Upstream

# Less than most servers keep an idle connection: a request must not meet a connection that is about to end.
IDLE_SECONDS: Final = 3.0
MAX_IDLE_EACH: Final = 16
MAX_IDLE: Final = 256

Key = tuple[LeaseId, int]


class Pool:
    def __init__(self) -> None:
        self._idle: dict[Key, list[Upstream]] = {}
        self._count = 0

    def take(self, key: Key) -> Upstream | None:
        idle = self._idle.get(key, [])
        while idle:
            found = idle.pop()
            self._count -= 1
            if found.may_be_reused:
                found.is_reused = True
                return found
            found.channel.close()
        self._idle.pop(key, None)
        return None

    def put(self, key: Key, upstream: Upstream) -> None:
        """Keeps it, or closes it."""
        idle = self._idle.get(key, [])
        if not upstream.may_be_reused or len(idle) >= MAX_IDLE_EACH or self._count >= MAX_IDLE:
            upstream.channel.close()
            return
        self._idle.setdefault(key, idle).append(upstream)
        self._count += 1
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, key, upstream, upstream.uses)

    def _expire(self, key: Key, upstream: Upstream, uses: int) -> None:
        idle = self._idle.get(key, [])
        if upstream in idle and upstream.uses == uses:
            idle.remove(upstream)
            self._count -= 1
            upstream.channel.close()
            if not idle:
                self._idle.pop(key, None)

    def close(self) -> None:
        for idle in self._idle.values():
            for upstream in idle:
                upstream.channel.close()
        self._idle.clear()
        self._count = 0
