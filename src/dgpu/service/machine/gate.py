"""Holds back outputs that follow no commit until the engine confirms that this scheduler still leads.

A commit compares the fence, so its outputs are safe. An acknowledged heartbeat, a welcome without a change, a refusal
and a read follow no commit: a scheduler that lost the leadership without noticing could send them. Each waits for a
confirmation (a commit, or a linearisable read that shows the fence) that was requested after its cause was read. One
confirmation is in flight at a time and counts for all outputs that waited when it was requested.
"""

from __future__ import annotations

from collections import deque

from dgpu.service.machine.outputs import Confirm, Contradicted, HangUp, Output, Reply, ReplyFailed, Tell

_EFFECTS = (Tell, HangUp, Contradicted, Reply, ReplyFailed)


class Gate:
    """`is_gated` False: a lone scheduler, whose lock on the directory is proof enough. Everything passes at once."""

    def __init__(self, *, is_gated: bool) -> None:
        self.is_gated = is_gated
        self._last = 0  # number of the newest cause
        self._confirmed = 0  # all causes up to this one are confirmed
        self._asked = 0  # newest cause when the confirmation in flight was requested; 0: none is in flight
        self._appended = 0  # newest cause when the group in flight was sent
        self._held: deque[tuple[int, Output]] = deque()
        self._waits_since: deque[tuple[int, int]] = deque()  # causes and the times at which they were read

    def cause(self, now: int) -> int:
        """The number of a cause that was read now."""
        self._last += 1
        self._waits_since.append((self._last, now))
        return self._last

    def is_confirmed(self, cause: int) -> bool:
        return cause <= self._confirmed

    def hold(self, outputs: list[Output], now: int) -> list[Output]:
        """Outputs that may leave at once. Effects wait, in their order."""
        if not self.is_gated or not any(isinstance(output, _EFFECTS) for output in outputs):
            return outputs
        cause = self.cause(now)
        self._held.extend((cause, output) for output in outputs if isinstance(output, _EFFECTS))
        return [output for output in outputs if not isinstance(output, _EFFECTS)] + self.ask()

    def ask(self) -> list[Output]:
        """Requests a confirmation if one is needed and none is in flight."""
        if self._asked or self._last <= self._confirmed:
            return []
        self._asked = self._last
        return [Confirm(ticket=self._asked)]

    def on_append(self) -> None:
        self._appended = self._last

    def on_committed(self) -> list[Output]:
        """The commit confirms all causes that were read before it was sent."""
        return self._release(self._appended)

    def on_confirmed(self, ticket: int) -> list[Output]:
        self._asked = 0
        return self._release(ticket) + self.ask()

    def waits_ms(self, now: int) -> int:
        """How long the oldest cause has waited for its confirmation."""
        return now - self._waits_since[0][1] if self._waits_since else 0

    def _release(self, cause: int) -> list[Output]:
        self._confirmed = max(self._confirmed, cause)
        while self._waits_since and self._waits_since[0][0] <= self._confirmed:
            self._waits_since.popleft()
        outputs: list[Output] = []
        while self._held and self._held[0][0] <= self._confirmed:
            outputs.append(self._held.popleft()[1])
        return outputs
