"""Another scheduler, as this one has seen it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dgpu.journal.announced import Announced

ANNOUNCE_MS = 5_000
SILENT_MS = 3 * ANNOUNCE_MS  # not seen for this long: it does not run, or cannot reach the engine
BEHIND_MS = 10_000  # a standby is usually 1 s behind


class SeenScheduler(msgspec.Struct, frozen=True, kw_only=True):
    announced: Announced
    unseen_ms: int  # since its last announcement
    is_me: bool

    @property
    def trouble(self) -> str:
        """Why it could not take over well now; empty: it could."""
        if self.announced.role == "stopped":
            return "it was stopped"
        if self.unseen_ms > SILENT_MS:
            return f"not seen for {self.unseen_ms // 1_000} s"
        if self.announced.lag_ms is None:
            return "it has not read the journal yet"
        if self.announced.lag_ms > BEHIND_MS:
            return f"{self.announced.lag_ms // 1_000} s behind"
        return ""


class MasterChange(NamedTuple):
    before: str
    after: str
    epoch: int
    ago_ms: int
