"""What the runtime asks of the leadership, if other schedulers may take over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Quorum(Protocol):
    """All calls come from the loop, and so do the callbacks."""

    def may_act(self) -> bool:
        """Whether effects may leave now, by the clock."""
        ...

    def when_allowed(self, action: Callable[[], None]) -> None:
        """Calls back, in order, when effects may leave again. Never, if the leadership is lost before."""
        ...

    def confirm(self, done: Callable[[], None]) -> None:
        """Calls back when the engine has shown our fence after this call. Never, if the leadership is lost before."""
        ...

    def on_fenced(self, why: str) -> None:
        """A commit was refused: another scheduler leads."""
        ...

    @property
    def last_index(self) -> int:
        """Of the last committed group. May be ahead of the machine, which hears of it a little later."""
        ...

    def step_down(self) -> None:
        """An append that waits for the engine ends."""
        ...
