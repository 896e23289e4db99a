"""A word to whoever waits for a scheduler that hangs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from dgpu.cli.failures import note

LATE_SECONDS = 3.0


class Lateness:
    """Says once, on stderr, what is waited for and for how long.

    Only until the first answer. Who waits for a task or watches goes on longer than one call does, and hears otherwise.
    """

    def __init__(self, give_up_seconds: float) -> None:
        self.url = ""
        self._give_up_seconds = give_up_seconds
        self._is_told = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        if self._is_told:
            yield
            return
        timer = threading.Timer(LATE_SECONDS, self._tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self._is_told = True

    def _tell(self) -> None:
        self._is_told = True
        late, most = f"{LATE_SECONDS:g} s", f"{self._give_up_seconds:g} s"
        note(f"dgpu: No answer from {self.url} for {late}; waiting for it up to {most}.")
