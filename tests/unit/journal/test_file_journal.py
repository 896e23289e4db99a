"""The file journal: what was appended comes back; a torn end is cut and told; anything else is refused."""

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dgpu.core.digest import digest
from dgpu.core.events import TasksSubmitted
from dgpu.journal.errors import CorruptJournal, JournalLocked
from dgpu.journal.file import FileJournal
from dgpu.journal.format import record_bytes, scan
from dgpu.journal.journal import Journal, Room
from dgpu.journal.memory import MemoryDisk, MemoryJournal
from dgpu.journal.segments import JournalTail, live_segments
from dgpu.journal.snapshot import PREVIOUS_NAME, SNAPSHOT_NAME, write_snapshot
from dgpu.wire.records import encode_group
from unit.journal.samples import append_groups, busy_cluster, spec, write_journal

SMALL = {"segment_bytes": 1 << 14, "reserve_bytes": 1 << 13}
AS_WRITTEN = {"segment_bytes": 1 << 16, "reserve_bytes": 1 << 13}  # so that no new spares have to be made


def reopen(directory, **sizes) -> FileJournal:
    return FileJournal.open(directory, **(sizes or SMALL))


def recovered_digest(directory, **sizes) -> str:
    journal = reopen(directory, **sizes)
    try:
        return digest(journal.recover().replayed())
    finally:
        journal.close()


@pytest.fixture
def fast_path(tmp_path):
    """In memory if possible: hundreds of journals are opened, and their syncs on a busy disk are not the matter."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="dgpu-test-", dir=memory))
    yield directory
    shutil.rmtree(directory)


def last_record(directory) -> tuple:
    """The file that holds the last record, where it starts and where it ends."""
    for segment in reversed(live_segments(directory)):
        result = scan(segment.path.read_bytes(), file="f", first_index=segment.first_index)
        if result.records:
            record = result.records[-1]
            return segment.path, record.offset, record.offset + record_bytes(len(record.payload))
    raise AssertionError("no record")


def test_what_was_appended_comes_back_over_many_segments(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    assert len(live_segments(tmp_path)) > 3
    journal = reopen(tmp_path)
    recovery = journal.recover()
    assert (recovery.index, recovery.epoch, recovery.cut, recovery.notes) == (
        len(cluster.groups),
        1,
        None,
        (),
    )
    assert digest(recovery.replayed()) == digest(cluster.state)
    journal.close()


def test_a_recovered_journal_goes_on_where_it_ended(tmp_path) -> None:
    cluster = busy_cluster(steps=60)
    half = len(cluster.groups) // 2
    write_journal(tmp_path, cluster.groups[:half])
    journal = reopen(tmp_path)
    assert journal.recover().index == half
    append_groups(journal, cluster.groups[half:], first=half + 1, epoch=2)
    journal.close()
    assert recovered_digest(tmp_path) == digest(cluster.state)


def test_snapshot_and_tail_give_what_the_whole_journal_gives(tmp_path) -> None:
    cluster = busy_cluster(steps=20)
    taken_at = len(cluster.groups)
    write_snapshot(tmp_path, cluster.state, index=taken_at, epoch=1)
    cluster.live_on(60)
    write_journal(tmp_path / "whole", cluster.groups)
    shutil.copytree(tmp_path / "whole" / "journal", tmp_path / "journal")
    journal = reopen(tmp_path)
    recovery = journal.recover()
    assert recovery.snapshot_index == taken_at
    assert digest(recovery.replayed()) == digest(cluster.state) == recovered_digest(tmp_path / "whole")
    journal.close()


def test_a_journal_cut_at_every_byte_of_its_last_group_starts_and_says_what_it_cut(fast_path) -> None:
    cluster = busy_cluster(steps=10)
    write_journal(fast_path / "sound", cluster.groups)
    path, start, end = last_record(fast_path / "sound")
    content = path.read_bytes()
    without_last = digest(_replay(cluster.groups[:-1]))
    for cut in range(start + 1, end):
        directory = fast_path / "cut"
        shutil.copytree(fast_path / "sound", directory)
        damaged = directory / "journal" / path.name
        # Half of the cases: the file ends there. The other half: only zeros reached the disk behind it.
        damaged.write_bytes(content[:cut] if cut % 2 else content[:cut] + bytes(len(content) - cut))
        journal = reopen(directory, **AS_WRITTEN)
        recovery = journal.recover()
        if recovery.cut is None:
            # Only filling was missing, which is zeros: nothing is torn.
            assert cut % 2 == 0
            assert digest(recovery.replayed()) == digest(cluster.state)
        else:
            assert recovery.cut.index == len(cluster.groups)
            assert digest(recovery.replayed()) == without_last
            assert Path(recovery.cut.kept_at).read_bytes() == content[start:cut].rstrip(b"\0")
            journal.close()
            journal = reopen(directory, **AS_WRITTEN)
            assert journal.recover().cut is None  # cut once, told once
            journal.append(1, len(cluster.groups), encode_group(cluster.groups[-1]))
        journal.close()
        assert recovered_digest(directory, **AS_WRITTEN) == digest(cluster.state)
        shutil.rmtree(directory)


def _replay(groups):
    from dgpu.core.replay import replay

    return replay(event for group in groups for event in group)


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_in_the_journal_is_refused_or_looks_like_a_torn_last_group(
    fast_path, seed: int
) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    cluster = busy_cluster(seed, steps=40)
    write_journal(fast_path, cluster.groups, segment_bytes=1 << 13)
    (fast_path / "journal" / "next.journal").unlink()
    last_path, last_start, _ = last_record(fast_path)
    paths = [segment.path for segment in live_segments(fast_path)]
    allowed = {digest(cluster.state), digest(_replay(cluster.groups[:-1]))}
    refused = 0
    for _ in range(250):
        path = chance.choice(paths)
        content = path.read_bytes()
        bit = chance.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        journal = reopen(fast_path, segment_bytes=1 << 13, reserve_bytes=1 << 12)
        try:
            recovery = journal.recover()
            state = digest(recovery.replayed())
        except CorruptJournal as refusal:
            refused += 1
            assert refusal.file == str(path)
        else:
            assert path == last_path, (path, bit)
            assert bit // 8 >= last_start
            assert recovery.cut is not None
            assert state in allowed
        finally:
            journal.close()
        path.write_bytes(content)
    assert refused > 50


def test_a_segment_begun_but_empty_does_not_hide_the_epoch(tmp_path) -> None:
    """A scheduler may stop between taking a new segment and writing to it."""
    journal = reopen(tmp_path)
    journal.recover()
    journal.append(7, 1, encode_group(()))
    journal.close()
    (tmp_path / "journal" / "next.journal").rename(
        tmp_path / "journal" / "segment-00000000000000000002.journal"
    )
    journal = reopen(tmp_path)
    recovery = journal.recover()
    assert (recovery.index, recovery.epoch) == (1, 7)
    journal.append(7, 2, encode_group(()))
    journal.close()


def test_a_missing_segment_is_refused(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    live_segments(tmp_path)[1].path.unlink()
    with pytest.raises(CorruptJournal, match="is missing"):
        recovered_digest(tmp_path)


def test_a_missing_first_segment_is_refused_unless_a_snapshot_covers_it(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    live_segments(tmp_path)[0].path.unlink()
    with pytest.raises(CorruptJournal, match="in no segment"):
        recovered_digest(tmp_path)
    write_snapshot(tmp_path, cluster.state, index=len(cluster.groups), epoch=1)
    assert recovered_digest(tmp_path) == digest(cluster.state)


def test_a_journal_that_ends_before_its_snapshot_is_refused(tmp_path) -> None:
    """Otherwise groups that were acknowledged would be numbered a second time."""
    cluster = busy_cluster(steps=10)
    write_journal(tmp_path, cluster.groups)
    write_snapshot(tmp_path, cluster.state, index=len(cluster.groups) + 1, epoch=1)
    with pytest.raises(CorruptJournal, match="stands at"):
        recovered_digest(tmp_path)


def test_a_snapshot_without_a_journal_is_refused(tmp_path) -> None:
    write_snapshot(tmp_path, busy_cluster().state, index=5, epoch=1)
    with pytest.raises(CorruptJournal, match="holds no segment"):
        recovered_digest(tmp_path)


def test_two_damaged_snapshots_mean_a_full_replay_and_it_is_said(tmp_path) -> None:
    cluster = busy_cluster(steps=30)
    write_journal(tmp_path, cluster.groups)
    for name in (SNAPSHOT_NAME, PREVIOUS_NAME):
        (tmp_path / name).write_bytes(b"{}")
    journal = reopen(tmp_path)
    recovery = journal.recover()
    assert recovery.snapshot_index == 0
    assert len(recovery.notes) == 3
    assert digest(recovery.replayed()) == digest(cluster.state)
    journal.close()


def test_two_damaged_snapshots_and_an_incomplete_journal_are_refused(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    live_segments(tmp_path)[0].path.unlink()
    (tmp_path / SNAPSHOT_NAME).write_bytes(b"{}")
    with pytest.raises(CorruptJournal, match="in no segment"):
        recovered_digest(tmp_path)


def test_a_group_larger_than_a_segment_gets_one_of_its_own(tmp_path) -> None:
    journal = reopen(tmp_path)
    journal.recover()
    payloads = [b"a" * 100, b"b" * 50_000, b"c" * 100]
    for index, payload in enumerate(payloads, start=1):
        journal.append(1, index, payload)
    journal.close()
    found = [
        record.payload
        for segment in live_segments(tmp_path)
        for record in scan(segment.path.read_bytes(), file="f", first_index=segment.first_index).records
    ]
    assert found == payloads


def test_records_never_cross_a_segment_and_sealed_ones_give_their_rest_back(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    for segment in live_segments(tmp_path)[:-1]:
        content = segment.path.read_bytes()
        assert scan(content, file="f", first_index=segment.first_index).end == len(content)


def test_a_second_scheduler_on_the_directory_is_refused_and_told_who_has_it(tmp_path) -> None:
    journal = reopen(tmp_path)
    with pytest.raises(JournalLocked, match=str(os.getpid())):
        reopen(tmp_path)
    code = "import sys; from dgpu.journal.file import FileJournal; FileJournal.open(sys.argv[1])"
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert other.returncode != 0
    assert f"process {os.getpid()}" in other.stderr
    journal.close()
    reopen(tmp_path).close()


def test_everything_is_private(tmp_path) -> None:
    directory = tmp_path / "state"
    write_journal(directory, busy_cluster(steps=30).groups, segment_bytes=1 << 13)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory / "journal")} == {0o700}


def test_groups_out_of_order_and_old_epochs_are_not_written(tmp_path) -> None:
    journal = reopen(tmp_path)
    with pytest.raises(ValueError, match="recover comes before"):
        journal.append(1, 1, b"p")
    journal.recover()
    journal.append(2, 1, b"p")
    for epoch, index in ((2, 1), (2, 3), (1, 2)):
        with pytest.raises(ValueError, match="cannot follow"):
            journal.append(epoch, index, b"p")
    journal.close()


def test_without_a_next_segment_the_reserve_carries_reports_and_room_comes_back(tmp_path) -> None:
    """The disk refuses by a folder that stands where the next segment should be made."""
    journal = reopen(tmp_path)
    journal.recover()
    journal._spares.wait()
    obstacle = tmp_path / "journal" / "next.journal.tmp"
    obstacle.mkdir()
    index = 0
    while journal.room is Room.OK:
        index += 1
        journal.append(1, index, b"x" * 1000)
        journal._spares.wait()
    assert journal.room is Room.RESERVE
    assert journal.room_lacks
    while journal.room is Room.RESERVE:
        index += 1
        journal.append(1, index, b"x" * 1000)
    assert journal.room is Room.NONE
    assert not (tmp_path / "journal" / "reserve.journal").exists()
    journal.prepare()
    assert journal.room is Room.NONE
    obstacle.rmdir()
    journal.prepare()
    assert journal.room is Room.OK
    journal.append(1, index + 1, b"x" * 9000)
    journal.close()
    reopened = reopen(tmp_path)
    assert reopened.recover().index == index + 1
    reopened.close()


def test_a_reader_beside_the_writer_sees_what_is_committed_and_no_more(tmp_path) -> None:
    cluster = busy_cluster(steps=120)
    journal = reopen(tmp_path, segment_bytes=1 << 13, reserve_bytes=1 << 12)
    journal.recover()
    tail = JournalTail(tmp_path, after_index=0)
    seen = []
    for index, group in enumerate(cluster.groups, start=1):
        journal.append(1, index, encode_group(group))
        if index % 7 == 0:
            seen += tail.read(upto_index=index - 1, max_groups=3)
            assert len(seen) <= index - 1
    while more := tail.read(upto_index=len(cluster.groups), max_groups=50):
        seen += more
    journal.close()
    assert [tuple(group.events) for group in seen] == cluster.groups
    late = JournalTail(tmp_path, after_index=len(cluster.groups) - 2)
    assert [group.index for group in late.read(upto_index=len(cluster.groups), max_groups=9)] == [
        len(cluster.groups) - 1,
        len(cluster.groups),
    ]


def test_a_reader_never_takes_much_more_than_8_mib_at_once(fast_path) -> None:
    """Ten batches of 10,000 tasks must not all be in the follower's memory."""
    journal = reopen(fast_path, segment_bytes=1 << 24, reserve_bytes=1 << 13)
    journal.recover()
    huge = encode_group((TasksSubmitted(1, 1, tuple((1, spec("x" * 1000)) for _ in range(2000))),))
    for index in range(1, 11):
        journal.append(1, index, huge)
    journal.close()
    tail = JournalTail(fast_path, after_index=0)
    portions = []
    while portion := tail.read(upto_index=10, max_groups=500):
        portions.append(len(portion))
    assert sum(portions) == 10
    assert max(portions) * len(huge) < (8 << 20) + 2 * len(huge)
    assert len(portions) > 2


def test_a_reader_refuses_a_damaged_group(tmp_path) -> None:
    cluster = busy_cluster(steps=20)
    write_journal(tmp_path, cluster.groups)
    path, start, _ = last_record(tmp_path)
    content = bytearray(path.read_bytes())
    content[start + 50] ^= 1
    path.write_bytes(content)
    tail = JournalTail(tmp_path, after_index=0)
    with pytest.raises(CorruptJournal):
        while tail.read(upto_index=len(cluster.groups), max_groups=5):
            pass


def test_the_journal_in_memory_keeps_the_same_promises() -> None:
    cluster = busy_cluster(steps=30)
    disk = MemoryDisk()
    journal: Journal = MemoryJournal(disk)
    journal.recover()
    for index, group in enumerate(cluster.groups, start=1):
        journal.append(1, index, encode_group(group))
    del disk.segment[-5:]
    recovery = MemoryJournal(disk).recover()
    assert recovery.cut is not None
    assert recovery.index == len(cluster.groups) - 1
    assert digest(recovery.replayed()) == digest(_replay(cluster.groups[:-1]))
    disk.segment[60] ^= 1
    with pytest.raises(CorruptJournal):
        MemoryJournal(disk).recover()


def test_what_a_killed_process_had_not_synced_is_synced_before_it_counts(tmp_path, monkeypatch) -> None:
    """The next group may go to a new segment, whose sync does not reach the old one."""
    write_journal(tmp_path, busy_cluster(steps=5).groups)
    synced: list[int] = []
    sync = os.fdatasync

    def counted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    journal = reopen(tmp_path)
    recovery = journal.recover()
    assert recovery.index > 0
    assert synced == [live_segments(tmp_path)[-1].path.stat().st_ino]
    journal.close()
