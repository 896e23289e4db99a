"""Streams that are open: counted, bounded, and ended with the credential that opened them.

Events, boards, followed output and downloads run long after their request was admitted. While any is open, each
credential is checked again once a second: a token that was revoked or has expired ends its streams, and so does a
session that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from dgpu.service.access.principal import Principal
from dgpu.service.rest.doors import Guest
from dgpu.service.rest.turnstile import lane_of

CHECK_SECONDS = 1.0

_log = structlog.get_logger("dgpu.rest")


class OpenStream:
    """One open answer. `close` it exactly when the answer ends, however it ends."""

    __slots__ = ("_all", "guest", "who")

    def __init__(self, streams: OpenStreams, who: Principal, guest: Guest | None) -> None:
        self._all: OpenStreams | None = streams
        self.who = who
        self.guest = guest

    def close(self) -> None:
        if self._all is not None:
            self._all.forget(self)
            self._all = None


class OpenStreams:
    def __init__(self) -> None:
        self.still_admits: Callable[[Principal], bool] = lambda _: (
            True
        )  # whether the credential is still good
        self._open: set[OpenStream] = set()
        self._next_check: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return len(self._open)

    def count_of(self, lane: str) -> int:
        return sum(lane_of(stream.who) == lane for stream in self._open)

    def add(self, who: Principal, guest: Guest | None) -> OpenStream:
        stream = OpenStream(self, who, guest)
        self._open.add(stream)
        self._check_later()
        return stream

    def forget(self, stream: OpenStream) -> None:
        self._open.discard(stream)

    def check(self) -> None:
        """Ends the streams of principals that are no longer admitted.

        The connection is aborted: a clean end would tell a client that it has the whole output.
        """
        verdicts: dict[Principal, bool] = {}
        for stream in tuple(self._open):
            who = stream.who
            if who not in verdicts:
                verdicts[who] = self.still_admits(who)
            if not verdicts[who] and stream.guest is not None:
                _log.info("stream_ended", user=who.user, token_id=who.token_id, reason="no longer admitted")
                stream.guest.close()

    def _check_later(self) -> None:
        if self._next_check is None and self._open:
            self._next_check = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_on)

    def _check_on(self) -> None:
        self._next_check = None
        self.check()
        self._check_later()
