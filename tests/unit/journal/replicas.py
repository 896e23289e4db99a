"""Journals of several schedulers on one engine in memory."""

from __future__ import annotations

from pathlib import Path

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal.file import FileJournal
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.journal.segments import chain, scans
from dgpu.wire.records import encode_group
from engine_contract import elected
from unit.journal.samples import busy_cluster

SIZES = {"segment_bytes": 1 << 12, "reserve_bytes": 1 << 12}
CLUSTER = busy_cluster(steps=120)
GROUPS = CLUSTER.groups


def leading(journal: ReplicatedJournal, engine: MemoryEngine, name: str = "a") -> ReplicatedJournal:
    term = elected(engine, name)
    while journal.catch_up():
        pass
    journal.lead(term)
    return journal


def append(journal: ReplicatedJournal, first: int, last: int, *, epoch: int = 1) -> None:
    for index in range(first, last + 1):
        journal.append(epoch, index, encode_group(GROUPS[index - 1]))


def caught_up(journal: ReplicatedJournal) -> int:
    count = 0
    while groups := journal.catch_up():
        count += len(groups)
    return count


def records_in(directory: Path) -> list[tuple[int, int, bytes]]:
    return [
        (record.index, record.epoch, record.payload)
        for _, result in scans(chain(directory, 0).segments)
        for record in result.records
    ]


def state_after(index: int) -> bytes:
    return digest(replay(event for group in GROUPS[:index] for event in group))


def write_locally(directory: Path, first: int, last: int, *, epoch: int) -> None:
    """As a scheduler that writes its local files before the commit."""
    journal = FileJournal.open(directory, **SIZES)
    journal.recover()
    for index in range(first, last + 1):
        journal.append(epoch, index, encode_group(GROUPS[index - 1]))
    journal.close()
