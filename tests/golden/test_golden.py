"""Journals of released schemas are read for ever, and mean what they meant."""

import json
import shutil
from pathlib import Path

import pytest

from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.journal.file import FileJournal
from dgpu.journal.snapshot import load_snapshot
from dgpu.wire.records import SCHEMA

HERE = Path(__file__).parent
SCHEMAS = sorted(HERE.glob("schema*"))


def summary(state) -> dict:
    return {
        "tasks": {
            str(one.id): [str(one.status), one.attempt, one.retries, one.reason]
            for one in state.tasks.values()
        },
        "leases": {
            str(lease.id): [lease.task_id, lease.node_id, *lease.gpu_ids] for lease in state.leases.values()
        },
        "nodes": {node.id: str(node.status) for node in state.nodes.values()},
    }


def test_every_released_schema_has_its_golden_journal() -> None:
    assert [path.name for path in SCHEMAS] == [f"schema{number}" for number in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("golden", SCHEMAS, ids=lambda path: path.name)
def test_a_golden_journal_gives_the_state_it_gave_when_it_was_written(golden: Path, tmp_path) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    shutil.copytree(golden / "journal", tmp_path / "journal")
    journal = FileJournal.open(tmp_path, segment_bytes=8192, reserve_bytes=4096)
    recovery = journal.recover()
    kinds = {type(event).__name__ for group in recovery.groups for event in group.events}
    assert sorted(kinds) == expected["events"]
    assert (recovery.index, recovery.epoch, recovery.cut) == (expected["groups"], expected["epoch"], None)
    state = recovery.replayed()
    journal.close()
    check_invariants(state)
    assert summary(state) == {name: expected[name] for name in ("tasks", "leases", "nodes")}
    assert digest(state) == expected["digest"]


@pytest.mark.parametrize("golden", SCHEMAS, ids=lambda path: path.name)
def test_a_golden_snapshot_is_still_believed(golden: Path) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    snapshot = load_snapshot(golden / "snapshot.golden.json")
    assert snapshot.index == expected["groups"]
    assert digest(snapshot.state) == expected["digest"]
