"""A snapshot with its files of keys as one stream in parts."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal.bundle import SnapshotBundle, pack_bundle, unpack_bundle
from dgpu.journal.errors import SnapshotDamaged
from dgpu.journal.key_files import KEYS_FOLDER
from dgpu.journal.snapshot import SNAPSHOT_NAME, load_snapshot, write_snapshot
from unit.journal.replicas import GROUPS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_snapshot(
        tmp_path / "a", replay(event for group in GROUPS for event in group), index=len(GROUPS), epoch=3
    )
    return tmp_path / "a"


def parts_of(directory: Path, part_bytes: int = 1 << 20) -> list[bytes]:
    bundle = SnapshotBundle(directory)
    try:
        return list(bundle.parts(part_bytes))
    finally:
        bundle.close()


@pytest.mark.parametrize("part_bytes", [1, 7, 1_000, 1 << 20])
def test_a_snapshot_is_the_same_after_its_journey(source: Path, tmp_path: Path, part_bytes: int) -> None:
    parts = parts_of(source, part_bytes)
    assert max(map(len, parts)) <= part_bytes
    unpack_bundle(parts, tmp_path / "b", "test")
    there, here = load_snapshot(tmp_path / "b" / SNAPSHOT_NAME), load_snapshot(source / SNAPSHOT_NAME)
    assert (there.index, there.epoch, there.key_files) == (here.index, here.epoch, here.key_files)
    assert digest(there.state) == digest(here.state)
    assert here.key_files, "the sample has idempotency keys"


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 40, 1 << 18, 5_000_000])
def test_content_of_any_size_is_the_same_after_its_journey(tmp_path: Path, size: int) -> None:
    """Well packed content: many bytes come out of few."""
    unpack_bundle(pack_bundle([(SNAPSHOT_NAME, size, [bytes(size)])], 100), tmp_path / "b", "test")
    assert (tmp_path / "b" / SNAPSHOT_NAME).read_bytes() == bytes(size)


def test_a_snapshot_may_be_replaced_while_it_is_read(source: Path, tmp_path: Path) -> None:
    """The follower writes the next one meanwhile, and deletes files of keys."""
    bundle = SnapshotBundle(source)
    write_snapshot(source, replay(GROUPS[0]), index=1, epoch=1)
    for path in (source / KEYS_FOLDER).iterdir():
        path.unlink()
    unpack_bundle(bundle.parts(1_000), tmp_path / "b", "test")
    bundle.close()
    assert load_snapshot(tmp_path / "b" / SNAPSHOT_NAME).index == len(GROUPS)


@pytest.mark.parametrize("name", [SNAPSHOT_NAME, KEYS_FOLDER])
def test_a_damaged_snapshot_is_noticed_before_its_end(source: Path, name: str) -> None:
    """Groups are deleted when the snapshot is stored, so a damaged one must never count."""
    path = source / name
    if path.is_dir():
        path = next(path.iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotDamaged):
        parts_of(source)


def test_a_short_file_is_noticed(source: Path) -> None:
    path = source / SNAPSHOT_NAME
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(SnapshotDamaged):
        parts_of(source)


def test_a_damaged_stream_is_refused(source: Path, tmp_path: Path) -> None:
    whole = b"".join(parts_of(source))
    for number, wrong in enumerate(
        (whole[:-1], whole[: len(whole) // 2], b"", whole[:30] + b"x" + whole[31:], whole + b"x")
    ):
        with pytest.raises(SnapshotDamaged, match=r"^test: "):
            unpack_bundle([wrong], tmp_path / str(number), "test")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "keys/../../evil", "keys/evil", "cluster.json", "evil/snapshot.json"]
)
def test_only_files_of_a_snapshot_are_written(tmp_path: Path, name: str) -> None:
    parts = pack_bundle([(name, 4, [b"evil"])], 1_000)
    with pytest.raises(SnapshotDamaged, match="no part of a snapshot"):
        unpack_bundle(parts, tmp_path / "b", "test")
    assert not list(tmp_path.rglob("evil*"))


def test_more_than_the_list_says_is_refused(tmp_path: Path) -> None:
    head = msgspec.json.encode({"format": 1, "files": [[SNAPSHOT_NAME, 2]]})
    with pytest.raises(SnapshotDamaged, match="longer than its list"):
        unpack_bundle([zlib.compress(head + b"\nabc")], tmp_path / "b", "test")
