"""A running journal whose files are deleted or replaced: it notices before it acknowledges, and makes them again."""

import shutil
import subprocess
import sys

import pytest

from dgpu.core.digest import digest
from dgpu.journal.errors import JournalLocked, NotWritten
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Room
from dgpu.journal.segments import live_segments
from dgpu.journal.snapshot import SNAPSHOT_NAME, write_snapshot
from dgpu.wire.records import encode_group
from unit.journal.samples import append_groups, busy_cluster

SMALL = {"segment_bytes": 1 << 14, "reserve_bytes": 1 << 13}


@pytest.fixture
def journal(tmp_path):
    journal = FileJournal.open(tmp_path, **SMALL)
    journal.recover()
    journal._spares.wait()
    yield journal
    journal.close()


def reopened_digest(directory) -> str:
    journal = FileJournal.open(directory, **SMALL)
    try:
        return digest(journal.recover().replayed())
    finally:
        journal.close()


@pytest.mark.parametrize("what", ["segment", "folder", "moved", "replaced", "everything"])
def test_no_group_is_acknowledged_into_a_file_without_its_name(tmp_path, journal, what: str) -> None:
    cluster = busy_cluster(steps=30)
    half = len(cluster.groups) // 2
    append_groups(journal, cluster.groups[:half])
    segment = live_segments(tmp_path)[-1].path
    if what == "segment":
        segment.unlink()
    elif what == "folder":
        shutil.rmtree(tmp_path / "journal")
    elif what == "moved":
        (tmp_path / "journal").rename(tmp_path / "elsewhere")
    elif what == "replaced":
        segment.unlink()
        segment.write_bytes(b"something else")
    else:
        shutil.rmtree(tmp_path)
    for index, group in enumerate(cluster.groups[half:], start=half + 1):
        journal.append(1, index, encode_group(group))
        if index == half + 1:
            assert live_segments(tmp_path)[-1].path.stat().st_size > 0  # before the group was acknowledged
    if what == "replaced":
        (aside,) = (tmp_path / "journal").glob("replaced-*")
        assert aside.read_bytes() == b"something else"
    journal.look()  # the lock, which `close` and the next opening need
    journal.close()
    assert reopened_digest(tmp_path) == digest(cluster.state)


def test_a_look_makes_the_files_of_an_idle_journal_again(tmp_path, journal) -> None:
    cluster = busy_cluster(steps=5)
    append_groups(journal, cluster.groups)
    assert journal.look().notes == ()
    shutil.rmtree(tmp_path)
    sighting = journal.look()
    assert sighting.snapshot_due
    assert not sighting.trouble
    assert len(sighting.notes) == 3  # lock, segment, spares
    journal._spares.wait()
    names = {path.name for path in (tmp_path / "journal").iterdir()}
    assert names == {live_segments(tmp_path)[0].path.name, "next.journal", "reserve.journal"}
    assert journal.look().notes == ()
    journal.close()
    assert reopened_digest(tmp_path) == digest(cluster.state)


def test_without_a_place_for_the_file_nothing_is_acknowledged_and_what_is_known_can_be_read(
    tmp_path, journal
) -> None:
    cluster = busy_cluster(steps=30)
    append_groups(journal, cluster.groups[:-1])
    before = digest(journal.committed_state())
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "journal").write_text("no folder")
    last = len(cluster.groups)
    with pytest.raises(NotWritten, match="cannot be recreated") as refused:
        journal.append(1, last, encode_group(cluster.groups[-1]))
    assert refused.value.gone
    assert journal.room is Room.NONE
    assert "cannot be recreated" in journal.trouble
    assert digest(journal.committed_state()) == before
    journal.prepare()
    assert journal.room is Room.NONE
    assert journal.look().trouble
    (tmp_path / "journal").unlink()
    journal.prepare()
    assert (journal.room, journal.trouble) == (Room.OK, "")
    journal.append(1, last, encode_group(cluster.groups[-1]))
    journal.close()
    assert reopened_digest(tmp_path) == digest(cluster.state)


@pytest.mark.parametrize(
    "names", [["next.journal"], ["reserve.journal"], ["next.journal", "reserve.journal"]]
)
def test_deleted_spares_do_not_stop_the_journal(tmp_path, journal, names: list[str]) -> None:
    for name in names:
        (tmp_path / "journal" / name).unlink()
    for index in range(1, 60):
        journal.append(1, index, b"x" * 1000)
    assert len(live_segments(tmp_path)) > 3
    assert journal.room is Room.OK


def test_a_look_asks_for_a_snapshot_when_a_sealed_segment_is_gone_that_none_covers(tmp_path, journal) -> None:
    cluster = busy_cluster(steps=200)
    append_groups(journal, cluster.groups)
    journal._spares.wait()
    segments = live_segments(tmp_path)
    assert len(segments) > 2
    assert journal.look().notes == ()
    segments[0].path.unlink()
    sighting = journal.look()
    assert sighting.snapshot_due
    assert segments[0].path.name in sighting.notes[0]
    write_snapshot(tmp_path, cluster.state, index=len(cluster.groups), epoch=1)
    assert journal.look().notes == ()
    segments[1].path.unlink()  # the snapshot has its groups
    assert journal.look().notes == ()
    (tmp_path / SNAPSHOT_NAME).unlink()
    assert journal.look().snapshot_due
    write_snapshot(tmp_path, cluster.state, index=len(cluster.groups), epoch=1)
    journal.close()
    assert reopened_digest(tmp_path) == digest(cluster.state)


def test_a_deleted_lock_is_taken_again_and_a_second_scheduler_is_refused(tmp_path, journal) -> None:
    (tmp_path / "lock").unlink()
    journal.look()
    with pytest.raises(JournalLocked):
        FileJournal.open(tmp_path, **SMALL)


def test_a_scheduler_that_lost_its_directory_to_another_one_says_so(tmp_path, journal) -> None:
    (tmp_path / "lock").unlink()
    other = FileJournal.open(tmp_path, **SMALL)
    try:
        with pytest.raises(JournalLocked):
            journal.look()
    finally:
        other.close()


def test_a_turn_to_the_next_segment_needs_no_new_descriptor(tmp_path) -> None:
    """Too many connections are load, not a broken disk: the journal goes on, and says what it lacks."""
    program = f"""
import os, resource, sys
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Room
journal = FileJournal.open(sys.argv[1], segment_bytes={SMALL["segment_bytes"]}, reserve_bytes={SMALL["reserve_bytes"]})
journal.recover(); journal._spares.wait()
highest = max(map(int, os.listdir("/proc/self/fd")))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
index = 0
while journal.room is Room.OK:
    index += 1
    journal.append(1, index, b"x" * 1000)
    journal._spares.wait()
assert journal.room is Room.RESERVE, journal.room
assert "Too many open files" in journal.trouble, journal.trouble
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
journal.prepare()
assert (journal.room, journal.trouble) == (Room.OK, "")
journal.append(1, index + 1, b"y")
print(index + 1)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    journal = FileJournal.open(tmp_path, **SMALL)
    assert journal.recover().index == int(run.stdout)
    journal.close()
