"""Snapshots: readable, believed only when whole, replaced only by what can be read."""

import json
import random
import stat
import zlib

import msgspec
import pytest

from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.core.parts import LATER_PARTS
from dgpu.core.state import ClusterState
from dgpu.journal.errors import NewerVersion, SnapshotDamaged
from dgpu.journal.snapshot import (
    DAMAGED_NAME,
    FORMAT,
    PREVIOUS_NAME,
    SNAPSHOT_NAME,
    decode_snapshot,
    encode_snapshot,
    load_newest,
    load_snapshot,
    snapshot_index,
    write_snapshot,
)
from unit.journal.samples import busy_cluster


def test_a_snapshot_gives_the_state_it_was_taken_of() -> None:
    for seed in range(5):
        state = busy_cluster(seed, steps=80).state
        loaded = decode_snapshot(encode_snapshot(state, index=9, epoch=1), "f")
        assert (loaded.index, loaded.epoch, loaded.at) == (9, 1, state.last_at)
        assert loaded.state.parts() == state.parts()
        assert digest(loaded.state) == digest(state)
        check_invariants(loaded.state)


def test_an_empty_state_has_a_snapshot_too() -> None:
    loaded = decode_snapshot(encode_snapshot(ClusterState(), index=0, epoch=0), "f")
    assert digest(loaded.state) == digest(ClusterState())


def test_people_can_read_it() -> None:
    """Commands stand as JSON inside the JSON, one task a line."""
    state = busy_cluster().state
    content = encode_snapshot(state, index=9, epoch=1)
    read = json.loads(content)
    assert read["index"] == 9
    first = next(iter(state.tasks.values()))
    assert read["state"]["tasks"][0]["detail"] == json.loads(first.detail)
    assert content.count(b'\n{"id":') >= len(state.tasks)


@pytest.mark.parametrize("detail", [b"", b"{}", b"no JSON", b"null", b'"text"', b"\x00\xff"])
def test_a_detail_of_any_bytes_survives(detail: bytes) -> None:
    state = busy_cluster().state
    task_id, task = next(iter(state.tasks.items()))
    state.tasks[task_id] = msgspec.structs.replace(task, detail=detail)
    assert (
        decode_snapshot(encode_snapshot(state, index=1, epoch=1), "f").state.tasks[task_id].detail == detail
    )


def test_equal_details_are_one_object_after_loading() -> None:
    """A batch of 10,000 equal tasks must not cost 10,000 copies of its command after a restart."""
    state = busy_cluster().state
    blob = next(iter(state.tasks.values())).detail
    state.tasks.update(
        {task_id: msgspec.structs.replace(task, detail=blob) for task_id, task in state.tasks.items()}
    )
    loaded = decode_snapshot(encode_snapshot(state, index=1, epoch=1), "f").state
    assert len({id(task.detail) for task in loaded.tasks.values()}) == 1


@pytest.mark.parametrize("seed", range(2))
def test_every_flipped_bit_is_found(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    content = encode_snapshot(busy_cluster().state, index=9, epoch=1)
    for _ in range(2_000):
        bit = chance.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(bytes(damaged), "f")


def test_every_cut_is_found() -> None:
    content = encode_snapshot(busy_cluster(steps=5).state, index=9, epoch=1)
    for size in range(len(content)):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(content[:size], "f")


def test_the_one_before_is_kept_and_both_are_private(tmp_path) -> None:
    cluster = busy_cluster()
    write_snapshot(tmp_path, cluster.state, index=1, epoch=1)
    write_snapshot(tmp_path, cluster.state, index=2, epoch=1)
    write_snapshot(tmp_path, cluster.state, index=3, epoch=1)
    assert snapshot_index(tmp_path / SNAPSHOT_NAME) == 3
    assert snapshot_index(tmp_path / PREVIOUS_NAME) == 2
    assert load_snapshot(tmp_path / PREVIOUS_NAME).index == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {SNAPSHOT_NAME, PREVIOUS_NAME} < {path.name for path in files}
    assert {path.parent.name for path in files if "snapshot" not in path.name} == {"keys"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_damaged_newest_gives_way_to_the_one_before_and_that_is_said(tmp_path) -> None:
    cluster = busy_cluster()
    write_snapshot(tmp_path, cluster.state, index=1, epoch=1)
    write_snapshot(tmp_path, cluster.state, index=2, epoch=1)
    (tmp_path / SNAPSHOT_NAME).write_bytes((tmp_path / SNAPSHOT_NAME).read_bytes()[:-100])
    snapshot, notes = load_newest(tmp_path)
    assert snapshot.index == 1
    assert any(SNAPSHOT_NAME in note for note in notes)


def test_a_damaged_newest_never_replaces_the_sound_one_before(tmp_path) -> None:
    """Otherwise one bad block and one more snapshot leave no second state to recover from."""
    state = busy_cluster().state
    for index in (1, 2):
        assert write_snapshot(tmp_path, state, index=index, epoch=1) == ""
    content = bytearray((tmp_path / SNAPSHOT_NAME).read_bytes())
    content[60] ^= 1
    (tmp_path / SNAPSHOT_NAME).write_bytes(content)
    told = write_snapshot(tmp_path, state, index=3, epoch=1)
    assert "does not match its CRC" in told
    assert load_snapshot(tmp_path / SNAPSHOT_NAME).index == 3
    assert load_snapshot(tmp_path / PREVIOUS_NAME).index == 1
    assert (tmp_path / DAMAGED_NAME).read_bytes() == content
    assert write_snapshot(tmp_path, state, index=4, epoch=1) == ""
    assert load_snapshot(tmp_path / PREVIOUS_NAME).index == 3


def test_a_sound_newest_is_used_without_a_word(tmp_path) -> None:
    write_snapshot(tmp_path, busy_cluster().state, index=2, epoch=1)
    snapshot, notes = load_newest(tmp_path)
    assert (snapshot.index, notes) == (2, ())


def test_a_snapshot_that_could_not_be_read_never_replaces_one_that_can(tmp_path) -> None:
    state = busy_cluster().state
    write_snapshot(tmp_path, state, index=1, epoch=1)
    task_id, task = next(iter(state.tasks.items()))
    state.tasks[task_id] = msgspec.structs.replace(task, detail=b"{broken")
    with pytest.raises(msgspec.DecodeError):
        write_snapshot(tmp_path, state, index=2, epoch=1)
    assert load_newest(tmp_path)[0].index == 1


def test_a_state_that_does_not_fit_its_digest_is_not_believed_even_under_a_right_checksum() -> None:
    """A CRC finds flipped bits; the digest finds a program that writes or reads something else than the state."""
    content = encode_snapshot(busy_cluster().state, index=9, epoch=1)
    body = content[: content.rindex(b"\n,")].replace(b'"next_task_id":', b'"next_task_id":1')
    with pytest.raises(SnapshotDamaged, match="digests differ"):
        decode_snapshot(b'%b\n,"crc":"%08x"}\n' % (body, zlib.crc32(body)), "f")


@pytest.mark.parametrize("state", [ClusterState(), busy_cluster().state], ids=["empty", "busy"])
def test_a_snapshot_from_before_a_part_existed_loads_with_that_part_empty(state: ClusterState) -> None:
    empty = [name for name, part in LATER_PARTS.items() if getattr(state, name) == part]
    assert {"tenants", "typical", "quota", "meter"} <= set(empty)
    assert state.tasks or "health" in empty
    stored = json.loads(encode_snapshot(state, index=9, epoch=1))
    for name in empty:
        del stored["state"][name]
    del stored["crc"]
    body = msgspec.json.encode(stored)[:-1]
    older = decode_snapshot(b'%b\n,"crc":"%08x"}\n' % (body, zlib.crc32(body)), "f").state
    assert {name: getattr(older, name) for name in empty} == {name: LATER_PARTS[name] for name in empty}
    assert digest(older) == digest(state)
    assert all(getattr(older, name) is not LATER_PARTS[name] for name in empty if LATER_PARTS[name] == {})


def test_the_parts_that_came_later_are_those_of_an_empty_state() -> None:
    state = ClusterState()
    assert {name: getattr(state, name) for name in LATER_PARTS} == LATER_PARTS


def test_a_snapshot_of_a_newer_version_is_refused_by_name() -> None:
    """Falling back to an older snapshot would only meet the newer journal."""
    content = encode_snapshot(busy_cluster().state, index=3, epoch=1)
    newer = content[:-20].replace(FORMAT.encode(), b"dgpu-snapshot-9", 1)
    newer += b'\n,"crc":"%08x"}\n' % zlib.crc32(newer)
    with pytest.raises(NewerVersion, match=r"newer version of dgpu.*'dgpu-snapshot-9'"):
        decode_snapshot(newer, "snapshot.json")


def test_a_part_that_this_version_does_not_know_is_not_dropped() -> None:
    content = encode_snapshot(busy_cluster().state, index=3, epoch=1)
    longer = content[:-20].replace(b'"state":{', b'"state":{"added":7,', 1)
    longer += b'\n,"crc":"%08x"}\n' % zlib.crc32(longer)
    with pytest.raises(SnapshotDamaged, match="unknown field `added`"):
        decode_snapshot(longer, "snapshot.json")
