"""The journal of one scheduler among several: an engine that decides, and a copy of its groups in local segments."""

from __future__ import annotations

from typing import Protocol

from dgpu.journal.engine import Term
from dgpu.journal.journal import Group, Journal


class SharedJournal(Journal, Protocol):
    """`append` returns when the engine has committed the group and the local segment has it."""

    @property
    def last_index(self) -> int:
        """Of the last committed group that was copied."""
        ...

    @property
    def copied_bytes(self) -> int:
        """Of all groups that were appended or copied since it was opened."""
        ...

    def catch_up(self) -> list[Group]:
        """Copies the next committed groups to the local segments, and returns them. Empty: there are no more."""
        ...

    def lead(self, term: Term) -> None:
        """From now on, groups are appended under this term. Everything was copied."""
        ...

    def step_down(self) -> None:
        """An append that waits for the engine ends with EngineUnavailable. May be called from any thread."""
        ...
