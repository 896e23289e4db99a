from __future__ import annotations

import pytest

from dgpu.journal.memory_engine import MemoryEngine, SharedState
from dgpu.journal.replicated import ReplicatedJournal
from unit.journal.replicas import SIZES


@pytest.fixture
def shared():
    return SharedState(clock=lambda: 0)  # no lease ends


@pytest.fixture
def place(tmp_path, shared):
    """Opens the journal of one scheduler, by name, and closes all at the end."""
    opened = []

    def open_one(name: str, engine: MemoryEngine | None = None) -> ReplicatedJournal:
        journal = ReplicatedJournal.open(tmp_path / name, engine or MemoryEngine(shared), **SIZES)
        opened.append(journal)
        journal.recover()
        return journal

    yield open_one
    for journal in opened:
        journal.close()
