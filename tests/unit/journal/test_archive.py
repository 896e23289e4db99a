"""Packed segments: still readable, bounded, and never packed before everything has them."""

import gzip
import os
import tracemalloc

import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.journal.archive import Retention, earliest_state, latest_state, pack_covered, prune
from dgpu.journal.errors import CorruptJournal
from dgpu.journal.file import FileJournal
from dgpu.journal.segments import StoredGroups, archived_segments, chain, first_at, live_segments
from dgpu.journal.snapshot import PREVIOUS_NAME, SNAPSHOT_NAME, archived_snapshots, write_snapshot
from unit.journal.samples import busy_cluster, write_journal

DAY_MS = 86_400_000


@pytest.fixture
def written(tmp_path):
    """A journal of many segments and two snapshots, the older in the middle."""
    cluster = busy_cluster(steps=150)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    return tmp_path, cluster


def snapshot_at(directory, cluster, index: int) -> None:
    state = replay(event for group in cluster.groups[:index] for event in group)
    write_snapshot(directory, state, index=index, epoch=1)


def recover(directory):
    journal = FileJournal.open(directory, segment_bytes=1 << 13, reserve_bytes=1 << 12)
    try:
        recovery = journal.recover()
        return recovery, digest(recovery.replayed())
    finally:
        journal.close()


def test_only_what_is_covered_is_packed_and_never_the_segment_being_written(written) -> None:
    directory, _ = written
    before = live_segments(directory)
    assert pack_covered(directory, before[1].first_index - 2) == []
    assert len(pack_covered(directory, before[1].first_index - 1)) == 1
    assert len(pack_covered(directory, 10**9)) == len(before) - 2
    assert [segment.path for segment in live_segments(directory)] == [before[-1].path]


def test_packed_segments_are_read_when_no_snapshot_can_be_used(written) -> None:
    directory, cluster = written
    snapshot_at(directory, cluster, 40)
    pack_covered(directory, 10**9)
    for name in (SNAPSHOT_NAME, PREVIOUS_NAME):
        (directory / name).write_bytes(b"damaged")
    recovery, found = recover(directory)
    assert recovery.snapshot_index == 0
    assert recovery.notes
    assert found == digest(cluster.state)


def test_a_state_kept_in_the_archive_serves_when_both_snapshots_are_damaged(written) -> None:
    directory, cluster = written
    for index in (100, 110):
        snapshot_at(directory, cluster, index)
    pack_covered(directory, 100)
    assert [index for index, _ in archived_snapshots(directory)] == [100]
    for name in (SNAPSHOT_NAME, PREVIOUS_NAME):
        (directory / name).write_bytes(b"damaged")
    recovery, found = recover(directory)
    assert recovery.snapshot_index == 100
    assert any("recovering from" in note for note in recovery.notes)
    assert found == digest(cluster.state)


def test_a_damaged_packed_segment_is_refused(written) -> None:
    directory, _ = written
    pack_covered(directory, 10**9)
    path = archived_segments(directory)[1].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptJournal) as refusal:
        recover(directory)
    assert refusal.value.file == str(path)


def test_the_archive_stays_within_its_bytes_oldest_first(written) -> None:
    directory, cluster = written
    for index in (100, 110):
        snapshot_at(directory, cluster, index)
    pack_covered(directory, 10**9)
    packed = archived_segments(directory)
    max_bytes = sum(path.stat().st_size for path in (directory / "archive").iterdir()) // 2
    removed = prune(directory, Retention(max_bytes=max_bytes), now_ms=0)
    left = archived_segments(directory)
    assert 0 < len(left) < len(packed)
    assert left == packed[-len(left) :]
    assert packed[0].path in removed
    assert sum(path.stat().st_size for path in (directory / "archive").iterdir()) <= max_bytes


def test_the_archive_stays_within_its_days(written) -> None:
    """The age of a segment is that of its groups, as they say it."""
    directory, _ = written
    pack_covered(directory, 10**9)
    packed = archived_segments(directory)
    ended_at = first_at(packed[3])
    assert ended_at is not None
    prune(directory, Retention(max_age_ms=2 * DAY_MS), now_ms=ended_at + 2 * DAY_MS)
    assert archived_segments(directory) == packed[2:], "the third one ended within the two days"
    last_at = first_at(live_segments(directory)[0])
    assert last_at is not None
    prune(directory, Retention(max_age_ms=2 * DAY_MS), now_ms=last_at + 2 * DAY_MS + 1)
    assert archived_segments(directory) == []


@pytest.mark.parametrize("wrong_days", [-3_650, -40, 40, 3_650])
def test_the_times_of_files_do_not_age_the_archive(written, wrong_days) -> None:
    """They come from a wall clock that may have been wrong."""
    directory, cluster = written
    pack_covered(directory, 10**9)
    packed = archived_segments(directory)
    for segment in packed:
        os.utime(segment.path, ns=(0, (1_800_000_000_000 + wrong_days * DAY_MS) * 1_000_000))
    assert prune(directory, Retention(), now_ms=cluster.state.last_at) == []
    assert archived_segments(directory) == packed


def test_a_segment_of_unknown_age_is_kept(written) -> None:
    directory, _ = written
    pack_covered(directory, 10**9)
    packed = archived_segments(directory)
    packed[1].path.write_bytes(b"damaged")
    assert first_at(packed[1]) is None
    assert prune(directory, Retention(max_age_ms=1), now_ms=10**15) == []


def test_a_replay_begins_where_the_archive_does(written) -> None:
    directory, cluster = written
    assert earliest_state(directory).index == 0
    for index in (60, 100, 110):
        snapshot_at(directory, cluster, index)
        pack_covered(directory, min(index, 60))
    prune(directory, Retention(max_bytes=0), now_ms=0)
    base = earliest_state(directory)
    assert base.index > 0
    assert latest_state(directory, upto_index=base.index - 1) is None
    later = latest_state(directory, upto_index=10**9)
    assert later is not None
    assert later.index == 110
    for start in (base, later):
        events = (event for group in StoredGroups(chain(directory, start.index)) for event in group.events)
        assert digest(replay(events, start.state)) == digest(cluster.state)


def test_a_packed_segment_is_plain_gzip_of_the_journal(written) -> None:
    """So that it can be looked at in twenty years without this program."""
    directory, _ = written
    first = live_segments(directory)[0].path.read_bytes()
    (packed,) = pack_covered(directory, live_segments(directory)[1].first_index - 1)
    assert gzip.decompress(packed.read_bytes()) == first


def test_packing_takes_little_memory_however_large_the_segment_is(written) -> None:
    """A follower that packed 32 MiB at once kept the memory for good."""
    directory, _ = written
    first, following = live_segments(directory)[:2]
    content = first.path.read_bytes() + os.urandom(32 << 20)
    first.path.write_bytes(content)
    tracemalloc.start()
    try:
        (packed,) = pack_covered(directory, following.first_index - 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert gzip.decompress(packed.read_bytes()) == content
