"""Another scheduler, as this one has seen it."""

from __future__ import annotations

from collections.abc import Sequence
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
    has_lost: bool = False  # it announced itself as the master last, and another scheduler leads by now

    @property
    def trouble(self) -> str:
        """Why it could not take over well now; empty: it could."""
        if self.announced.role == "stopped":
            return "it was stopped"
        if self.unseen_ms > SILENT_MS:
            return f"not seen for {self.unseen_ms // 1_000} s"
        if self.has_lost:
            return "it led, and was not seen since it lost the lead"
        if self.announced.lag_ms is None:
            return "it has not read the journal yet"
        if self.announced.lag_ms > BEHIND_MS:
            return f"{self.announced.lag_ms // 1_000} s behind"
        return ""


def with_one_master(seen: Sequence[SeenScheduler]) -> list[SeenScheduler]:
    """A killed master cannot announce that it leads no more. A higher epoch of any scheduler tells it."""
    epoch = max((each.announced.epoch for each in seen), default=0)
    return [
        msgspec.structs.replace(
            each, announced=msgspec.structs.replace(each.announced, role="standby"), has_lost=True
        )
        if each.announced.role == "master" and each.announced.epoch < epoch
        else each
        for each in seen
    ]


class MasterChange(NamedTuple):
    before: str
    after: str
    epoch: int
    ago_ms: int
