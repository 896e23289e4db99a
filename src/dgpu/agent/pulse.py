"""Whether the keeper still answers. A machine without I/O.

The agent sends a numbered ping with every tick, and the keeper answers it in its next round. Only ticks count, not
time: an agent that was stopped itself finds one unanswered ping when it wakes, not a dead keeper.
"""

from __future__ import annotations

TICK_SECONDS = 2.0
MAX_UNANSWERED = 3  # ticks: a keeper that hangs is noticed after 6 to 8 s


class Pulse:
    def __init__(self) -> None:
        self._number = 0
        self._answered = 0
        self._unanswered_ticks = 0

    @property
    def is_silent(self) -> bool:
        return self._unanswered_ticks >= MAX_UNANSWERED

    def tick(self) -> int:
        """The number of the ping to send now."""
        if self._number > self._answered:
            self._unanswered_ticks += 1
        self._number += 1
        return self._number

    def answered(self, number: int) -> None:
        """Any answer to a ping of this connection shows that the keeper runs."""
        self._answered = max(self._answered, min(number, self._number))
        self._unanswered_ticks = 0
