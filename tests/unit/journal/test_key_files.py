"""Idempotency keys beside the snapshots: restored exactly, and not written again by every snapshot."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from dgpu.core.commands import SubmitTasks, Tick
from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.core.model.idempotency import IdempotencyKey, pack
from dgpu.core.state import ClusterState
from dgpu.journal import key_files
from dgpu.journal.key_files import KEYS_FOLDER, KeyFiles
from dgpu.journal.snapshot import (
    PREVIOUS_NAME,
    SNAPSHOT_NAME,
    decode_snapshot,
    encode_snapshot,
    load_newest,
    load_snapshot,
    write_snapshot,
)
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import FollowerSettings
from unit.journal.samples import Cluster, busy_cluster, spec, write_journal

DAY_MS = 86_400_000
NOW = 1_700_000_000_000


class World:
    """A ring, its files and the snapshots, without a journal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = ClusterState()
        self.files = KeyFiles(directory, ())
        self.index = 0

    def add(self, first: int, number: int, *, tenant: str = "lab", at: int = NOW) -> None:
        for each in range(first, first + number):
            packed = pack(f"{tenant}/{each}", first_id=each, count=1, at=at, fingerprint="f")
            self.state.key_ring.add(packed)
            self.files.note(packed)
        self.state.last_at = max(self.state.last_at, at)

    def save(self) -> None:
        self.index += 1
        write_snapshot(self.directory, self.state, index=self.index, epoch=1, key_files=self.files)
        assert digest(load_snapshot(self.directory / SNAPSHOT_NAME).state) == digest(self.state)

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in (self.directory / KEYS_FOLDER).glob("*")}


def test_a_snapshot_writes_only_the_keys_since_the_last_one(tmp_path) -> None:
    world = World(tmp_path)
    world.add(1, 1_000)
    world.save()
    before = sum(world.sizes().values())
    snapshot_bytes = (tmp_path / SNAPSHOT_NAME).stat().st_size
    for number in range(5):
        world.add(10_000 + number, 1)
        world.save()
    assert sum(world.sizes().values()) < before * 1.01
    assert (tmp_path / SNAPSHOT_NAME).stat().st_size < snapshot_bytes + 100
    assert snapshot_bytes < 10_000


def test_a_file_goes_when_all_its_keys_are_forgotten(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "MAX_FILE_RECORDS", 100)
    monkeypatch.setattr(key_files, "_AT_A_TIME", 100)
    world = World(tmp_path)
    for number in range(6):
        world.add(number * 100, 100, at=NOW + number)
        world.save()
    assert len(world.sizes()) == 6
    world.state.key_ring.forget(NOW + 4)
    world.save()
    assert len(world.sizes()) == 6  # the snapshot before this one names them still
    world.save()
    assert len(world.sizes()) == 2


def test_files_full_of_forgotten_keys_are_merged(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of one tenant may go early while a few others of the same file stay for a day."""
    monkeypatch.setattr(key_files, "MAX_FILE_RECORDS", 100)
    world = World(tmp_path)
    world.add(1, 10, tenant="quiet")
    world.add(1, 1_000, tenant="loud")
    world.save()
    world.state.key_ring.forget(NOW + 1, "loud")
    world.save()
    world.save()
    assert sum(world.sizes().values()) < 2_000
    assert world.state.key_ring.count == 10


def test_a_key_that_was_given_again_is_the_later_one(tmp_path) -> None:
    world = World(tmp_path)
    world.add(1, 2)
    world.save()
    again = pack("lab/1", first_id=77, count=1, at=NOW + 5, fingerprint="g")
    world.state.key_ring.add(again)
    world.files.note(again)
    world.save()
    known = load_snapshot(tmp_path / SNAPSHOT_NAME).state.key_ring.find("lab/1")
    assert known is not None
    assert known.first_id == 77


def test_a_failed_write_is_tried_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.add(1, 10)
    world.save()
    world.add(11, 10)
    real = key_files.write_all

    def fill_the_disk(descriptor: int, content: bytes, offset: int) -> None:
        real(descriptor, content[:30], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_files, "write_all", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        world.save()
    monkeypatch.undo()
    assert load_newest(tmp_path)[0].state.key_ring.count == 10
    world.save()
    assert load_newest(tmp_path)[0].state.key_ring.count == 20


def test_a_follower_that_begins_again_continues_the_files(tmp_path) -> None:
    cluster = Cluster().begin()
    for number in range(30):
        cluster.do(SubmitTasks(entries=((1, spec()),), idempotency_key=f"lab/{number}", fingerprint="f"))
    write_journal(tmp_path, cluster.groups)
    for committed in (10, 17, 18, 25, len(cluster.groups)):
        follower = Follower(tmp_path, FollowerSettings(), lambda _: None)
        follower.commit_seen(committed)
        follower.finish(final_snapshot=True)
        follower.close()
        snapshot, notes = load_newest(tmp_path)
        assert (snapshot.index, notes) == (committed, ())
        assert digest(snapshot.state) == digest(follower.state)
    assert digest(follower.state) == digest(cluster.state)
    assert cluster.state.key_ring.count == 30


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damaged_files_of_keys_are_noticed_and_the_scheduler_starts_with_what_is_left(
    tmp_path, damage: str
) -> None:
    world = World(tmp_path)
    world.add(1, 100)
    world.save()
    world.add(101, 100)
    world.save()
    (path,) = (tmp_path / KEYS_FOLDER).glob("*")
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-10])
    elif damage == "flip":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    else:
        path.unlink()
    snapshot, notes = load_newest(tmp_path)
    if damage == "cut":  # the one before names only the first half
        assert snapshot.file.endswith(PREVIOUS_NAME)
        assert snapshot.state.key_ring.count == 100
    else:
        assert (snapshot.index, snapshot.key_files) == (2, None)
        assert snapshot.state.key_ring.count in {0, 199, 200}
        assert any("second task" in note for note in notes)
    check_invariants(snapshot.state)


def test_an_archived_snapshot_takes_the_keys_that_are_left(tmp_path) -> None:
    """Its files may be gone. Keys that are still known today are in files that are still there."""
    cluster = Cluster().begin()
    for number in range(40):
        cluster.do(SubmitTasks(entries=((1, spec()),), idempotency_key=f"lab/{number}", fingerprint="f"))
        cluster.do(Tick())
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 12)
    for committed in (*range(5, len(cluster.groups), 5), len(cluster.groups)):
        follower = Follower(tmp_path, FollowerSettings(snapshot_interval_ms=0), lambda _: None)
        follower.commit_seen(committed)
        follower.finish(final_snapshot=True)
        follower.close()
    assert list((tmp_path / "archive").glob("snapshot-*.gz"))
    (tmp_path / SNAPSHOT_NAME).write_bytes(b"{")
    (tmp_path / PREVIOUS_NAME).write_bytes(b"{")
    follower = Follower(tmp_path, FollowerSettings(), lambda _: None)
    follower.commit_seen(len(cluster.groups))
    follower.finish(final_snapshot=True)
    follower.close()
    assert digest(follower.state) == digest(cluster.state)
    assert digest(load_newest(tmp_path)[0].state) == digest(cluster.state)


def test_keys_of_a_snapshot_of_an_earlier_version_are_taken_over(tmp_path) -> None:
    state = busy_cluster().state
    state.key_ring.forget(10**15)
    state.keys = {"lab/old": IdempotencyKey(first_id=3, count=2, created_at=state.last_at, fingerprint="f")}
    stored = json.loads(encode_snapshot(state, index=9, epoch=1))
    del stored["key_ring"], stored["crc"]
    body = json.dumps(stored, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    (tmp_path / SNAPSHOT_NAME).write_bytes(b'%b\n,"crc":"%08x"}\n' % (body, zlib.crc32(body)))
    snapshot = load_snapshot(tmp_path / SNAPSHOT_NAME)
    known = snapshot.state.key_ring.find("lab/old")
    assert known is not None
    assert (known.first_id, known.count, snapshot.key_files) == (3, 2, None)
    write_snapshot(
        tmp_path, snapshot.state, index=10, epoch=1, key_files=KeyFiles(tmp_path, snapshot.key_files)
    )
    assert digest(load_newest(tmp_path)[0].state) == digest(snapshot.state)


def test_a_snapshot_in_memory_holds_its_keys_itself() -> None:
    state = busy_cluster(steps=60).state
    assert state.key_ring.count
    assert digest(decode_snapshot(encode_snapshot(state, index=1, epoch=1), "f").state) == digest(state)
