"""Local groups that the engine does not have are set aside, never deleted and never silently kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal import aside
from dgpu.journal.file import FileJournal
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.journal.replicated import Diverged, ReplicatedJournal
from dgpu.journal.snapshot import write_snapshot
from dgpu.wire.records import encode_group
from unit.journal.replicas import (
    GROUPS,
    SIZES,
    append,
    caught_up,
    leading,
    records_in,
    state_after,
    write_locally,
)


@pytest.mark.parametrize("tail", [1, 3, 60])
def test_a_tail_beyond_the_head_is_set_aside(place, shared, tmp_path, tail) -> None:
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 1, 30)
    journal.close()
    write_locally(tmp_path / "a", 31, 30 + tail, epoch=1)
    again = ReplicatedJournal.open(tmp_path / "a", MemoryEngine(shared), **SIZES)
    recovery = again.recover()
    assert recovery.index == 30
    assert f"local groups 31 to {30 + tail} are not in the engine's journal" in recovery.notes[-1]
    assert digest(recovery.replayed()) == state_after(30)
    assert again.set_aside is not None
    assert any("segment" in path.name for path in Path(again.set_aside.kept_at).iterdir())
    again.close()
    assert place("a").set_aside is None


def test_a_tail_with_another_hash_is_set_aside(place, shared, tmp_path) -> None:
    """The local files go their own way after group 20, and the engine has other groups there."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 20)
    other = place("b")
    caught_up(other)
    other.close()
    write_snapshot(
        tmp_path / "b", replay(event for group in GROUPS[:15] for event in group), index=15, epoch=1
    )
    write_locally(tmp_path / "b", 21, 50, epoch=1)
    write_snapshot(
        tmp_path / "b", replay(event for group in GROUPS[:45] for event in group), index=45, epoch=1
    )
    append(leader, 21, 60, epoch=2)
    again = place("b")
    assert again.set_aside is not None
    assert (again.set_aside.first_index, again.set_aside.last_index) == (21, 50)
    assert (Path(again.set_aside.kept_at) / "snapshot.json").exists()
    assert caught_up(again) == 40
    assert records_in(tmp_path / "b") == records_in(tmp_path / "a")
    assert digest(again.committed_state()) == state_after(60)


class Failing:
    """The n-th change of a file name fails."""

    def __init__(self, step: int) -> None:
        self.left = step
        self._rename = Path.rename

    def rename(self, path: Path, target: Path) -> Path:
        self._count()
        return self._rename(path, target)

    def write_file(self, path: Path, content: bytes) -> None:
        self._count()
        path.write_bytes(content)

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            raise OSError("the power failed")


def test_an_interrupted_set_aside_is_completed(place, shared, tmp_path, monkeypatch) -> None:
    """Whatever step fails, the next start finds a journal without gaps."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 20)
    for step in range(1, 100):
        directory = tmp_path / f"b{step}"
        copy = place(f"b{step}")
        caught_up(copy)
        copy.close()
        write_locally(directory, 21, 90, epoch=1)
        failing = Failing(step)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", lambda path, target, failing=failing: failing.rename(path, target))
            patch.setattr(aside, "write_file", failing.write_file)
            try:
                ReplicatedJournal.open(directory, MemoryEngine(shared), **SIZES).close()
            except OSError:
                assert failing.left == 0
        assert caught_up(place(f"b{step}")) == 0
        assert records_in(directory) == records_in(tmp_path / "a")
        if failing.left > 0:
            break
    assert 4 < step < 90


def test_a_copy_without_a_common_group_is_refused(place, shared, tmp_path) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 30)
    leader._engine.store_snapshot(leader._term, 20, 1, [b""])
    leader._engine.delete_covered(leader._term)
    write_locally(tmp_path / "b", 1, 25, epoch=1)
    journal = FileJournal.open(tmp_path / "c", **SIZES)
    journal.recover()
    for index in range(1, 26):
        journal.append(9, index, encode_group(GROUPS[index - 1]))
    journal.close()
    assert place("b").set_aside is None  # equal groups, though written by another program
    with pytest.raises(Diverged, match="join again with an empty one"):
        place("c")
