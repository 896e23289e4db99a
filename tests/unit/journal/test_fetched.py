"""A scheduler that was away for too long begins with the engine's snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal.bundle import SnapshotBundle
from dgpu.journal.engine import BelowFloor, Engine, StoredSnapshot
from dgpu.journal.errors import SnapshotDamaged
from dgpu.journal.fetched import begin_from_engine
from dgpu.journal.memory_engine import MemoryEngine, SharedState
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.journal.segments import JOURNAL_FOLDER, live_segments
from dgpu.journal.snapshot import SNAPSHOT_NAME, write_snapshot
from unit.journal.replicas import GROUPS, append, caught_up, leading, state_after


def store(leader: ReplicatedJournal, directory: Path, index: int) -> None:
    """As the leader does it."""
    write_snapshot(
        directory, replay(event for group in GROUPS[:index] for event in group), index=index, epoch=1
    )
    bundle = SnapshotBundle(directory)
    leader._engine.store_snapshot(leader._term, bundle.index, bundle.epoch, bundle.parts(500))
    bundle.close()
    leader._engine.delete_covered(leader._term)


def test_an_empty_directory_begins_with_the_snapshot(place, shared, tmp_path) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 50)
    assert begin_from_engine(tmp_path / "b", MemoryEngine(shared)) is None
    store(leader, tmp_path / "a", 40)
    fetched = begin_from_engine(tmp_path / "b", MemoryEngine(shared))
    assert (fetched.index, fetched.kept_at) == (40, "")
    joined = place("b")
    assert caught_up(joined) == 10
    assert digest(joined.committed_state()) == state_after(50)
    joined.close()
    assert place("b").head.index == 50


def test_earlier_files_are_set_aside_not_deleted(place, shared, tmp_path) -> None:
    """Groups that the engine never had may be among them."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 20)
    away = place("b")
    caught_up(away)
    away.close()
    write_snapshot(
        tmp_path / "b", replay(event for group in GROUPS[:10] for event in group), index=10, epoch=1
    )
    append(leader, 21, 60)
    store(leader, tmp_path / "a", 50)
    with pytest.raises(BelowFloor):
        place("b")
    fetched = begin_from_engine(tmp_path / "b", MemoryEngine(shared))
    kept = Path(fetched.kept_at)
    assert (kept / SNAPSHOT_NAME).exists()
    assert list((kept / JOURNAL_FOLDER).glob("segment-*"))
    assert str(kept) in str(fetched)
    back = place("b")
    assert caught_up(back) == 10
    assert digest(back.committed_state()) == state_after(60)


def test_an_interrupted_fetch_is_begun_again(place, shared, tmp_path, monkeypatch) -> None:
    """Whatever step fails, the directory never holds groups with a gap: the next start fetches again."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 20)
    for step in range(1, 30):
        away = place(f"b{step}")
        caught_up(away)
        away.close()
    append(leader, 21, 60)
    store(leader, tmp_path / "a", 50)
    rename = Path.rename
    for step in range(1, 30):
        directory, left = tmp_path / f"b{step}", step

        def fails(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if not left:
                raise OSError("the power failed")
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", fails)
            try:
                begin_from_engine(directory, MemoryEngine(shared))
            except OSError:
                assert not left
        if left <= 0:
            assert not live_segments(directory) or step == 1  # nothing was moved yet
            begin_from_engine(directory, MemoryEngine(shared))
        joined = place(f"b{step}")
        assert caught_up(joined) == 10
        assert digest(joined.committed_state()) == state_after(60)
        if left > 0:
            break
    assert 3 < step < 29


class Replaced(MemoryEngine):
    """The leader stores a later snapshot while this one is read."""

    def __init__(self, shared: SharedState, later: Iterator[None]) -> None:
        super().__init__(shared)
        self._later = later

    def snapshot_parts(self, stored: StoredSnapshot) -> Iterator[bytes]:
        next(self._later, None)
        return super().snapshot_parts(stored)


def test_a_snapshot_that_is_replaced_meanwhile_is_read_anew(place, shared, tmp_path) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 60)
    store(leader, tmp_path / "a", 20)

    def later() -> Iterator[None]:
        for index in (30, 40):
            store(leader, tmp_path / "a", index)
            yield

    assert begin_from_engine(tmp_path / "b", Replaced(shared, later())).index == 40
    joined = place("b")
    caught_up(joined)
    assert digest(joined.committed_state()) == state_after(60)


def test_a_snapshot_with_another_hash_changes_nothing(place, shared, tmp_path) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 20)
    store(leader, tmp_path / "a", 20)
    state = shared.state
    parts = list(state._snapshot_parts)
    parts[-1] = parts[-1][:-1] + b"?"
    state._snapshot_parts = tuple(parts)
    with pytest.raises(SnapshotDamaged):
        begin_from_engine(tmp_path / "b", MemoryEngine(shared))
    assert not live_segments(tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())


def test_a_leader_below_the_floor_does_not_exist(place, shared, tmp_path) -> None:
    """A standby that has not read to the head cannot lead, so it cannot commit after a gap either."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 10)
    behind: ReplicatedJournal = place("b")
    engine: Engine = leader._engine
    store(leader, tmp_path / "a", 10)
    with pytest.raises(BelowFloor):
        behind.catch_up()
    assert engine.floor() == 11
