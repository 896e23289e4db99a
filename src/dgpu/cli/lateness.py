"""Notes while a scheduler does not answer, and about answers of a standby that are old."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dgpu.cli.failures import note

if TYPE_CHECKING:
    from dgpu.client.attempts import AnsweredBy

LATE_SECONDS = 3.0
STALE_MS = 5_000


class Lateness:
    """Prints one note on stderr with the address and the time limit.

    It applies only until the first answer. `wait` and --watch last longer than one call and have their own notes.
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


class Staleness:
    """Prints one note on stderr if a standby answers with data that is more than 5 s old."""

    def __init__(self) -> None:
        self._is_told = False

    def on_answer(self, answer: AnsweredBy) -> None:
        if answer.role == "standby" and answer.lag_ms > STALE_MS and not self._is_told:
            self._is_told = True
            note(f"dgpu: {answer.url} is a standby; its data is {answer.lag_ms / 1_000:.0f} s old.")
