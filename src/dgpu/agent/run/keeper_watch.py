"""Watches whether the keeper can take orders, and tells the nodes. asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from dgpu.agent.frames import Frame
from dgpu.agent.keeper_link import is_answering
from dgpu.agent.pulse import MAX_UNANSWERED, TICK_SECONDS, Pulse

_log = structlog.get_logger("dgpu.agent")


class KeeperWatch:
    """`on_change` gets the reason why the keeper is unfit; empty: it is fit. `on_return` is called when it answers
    again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        send: Callable[[Frame], None],
        on_change: Callable[[str], None],
        on_return: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._send = send
        self._on_change = on_change
        self._on_return = on_return
        self._pulse = Pulse()
        self._pid = 0
        self._protocol = 0  # of the connected keeper; 0: none is connected
        self._ticks_without = 0
        self._is_stalled = False
        self._unfit = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_silent(self) -> bool:
        return self._pulse.is_silent

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def connected(self, pid: int, protocol: int) -> None:
        self._pulse = Pulse()
        self._is_stalled = False
        self._pid, self._protocol = pid, protocol
        self.be_unfit("")

    def lost(self) -> None:
        self._protocol = self._ticks_without = 0

    def answered(self, number: int, *, stalled: bool = False) -> None:
        """`stalled`: it runs, but waits for its disk."""
        self._is_stalled = stalled
        was_silent = self._pulse.is_silent
        self._pulse.answered(number)
        if was_silent:
            self._on_return()
        self._look()

    def be_unfit(self, reason: str) -> None:
        if reason == self._unfit:
            return
        self._unfit = reason
        if reason:
            _log.error("keeper_unfit", reason=reason, pid=self._pid)
        else:
            _log.info("keeper_fit", pid=self._pid)
        self._on_change(reason)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._protocol:
                self._ticks_without += 1
                if self._ticks_without >= MAX_UNANSWERED and not self._unfit:
                    self.be_unfit("its keeper is being replaced")
                continue
            number = self._pulse.tick()
            if self._protocol == 1:
                if await asyncio.to_thread(is_answering, self._directory):
                    self.answered(number)
            elif not self._pulse.is_silent:  # otherwise the unread pings are enough
                self._send({"ping": number})
            self._look()

    def _look(self) -> None:
        if not self._protocol:
            return
        if self._pulse.is_silent:
            self.be_unfit(f"its keeper (pid {self._pid}) does not answer")
        else:
            self.be_unfit("the disk of its keeper does not answer" if self._is_stalled else "")
