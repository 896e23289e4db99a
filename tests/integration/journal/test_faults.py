"""Real processes killed, a real full disk, a real failing fdatasync."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dgpu.core.digest import digest
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Room
from dgpu.journal.snapshot import load_newest, write_snapshot
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import FollowerSettings
from dgpu.service.history.reader import HISTORY_NAME, History
from unit.journal.samples import append_groups, busy_cluster, write_journal

HERE = Path(__file__).parent


@pytest.mark.slow
def test_kill_9_during_a_snapshot_leaves_a_sound_newest_one(tmp_path) -> None:
    """Killed in the midst of writing, 15 times. The newest file is always whole and never older than promised."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    cluster = busy_cluster(steps=200)
    write_snapshot(tmp_path, cluster.state, index=1, epoch=1)
    last = 1
    for _ in range(15):
        child = subprocess.Popen(
            [sys.executable, HERE / "snapshot_child.py", tmp_path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(chance.randint(1, 4)):
            promised = int(child.stdout.readline())
        # Somewhere inside the next one: waiting is by file, not by clock.
        if chance.random() < 0.5:
            while not any(tmp_path.glob("*.tmp")) and child.poll() is None:
                time.sleep(0.0002)
        child.kill()
        child.wait()
        child.stdout.close()
        snapshot, notes = load_newest(tmp_path)
        assert notes == ()
        assert snapshot.index >= promised > last
        assert digest(snapshot.state) == digest(cluster.state)
        last = promised


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return ballast


@pytest.mark.root
def test_on_a_full_disk_submits_stop_reports_go_on_and_room_comes_back(full_disk) -> None:
    journal = FileJournal.open(full_disk / "state", segment_bytes=1 << 17, reserve_bytes=1 << 16)
    journal.recover()
    journal._spares.wait()
    assert journal.room is Room.OK
    ballast = fill(full_disk)
    index = 0
    while journal.room is Room.OK:
        index += 1
        journal.append(1, index, b"x" * 2_000)
        journal._spares.wait()
    assert journal.room is Room.RESERVE
    assert "No space left" in journal.room_lacks
    for _ in range(10):  # reports
        index += 1
        journal.append(1, index, b"x" * 2_000)
    assert journal.room is Room.RESERVE
    while journal.room is Room.RESERVE:
        index += 1
        journal.append(1, index, b"x" * 2_000)
    assert journal.room is Room.NONE
    journal.close()

    # A scheduler that starts on the full disk comes up, has everything, and knows that there is no room.
    journal = FileJournal.open(full_disk / "state", segment_bytes=1 << 17, reserve_bytes=1 << 16)
    recovery = journal.recover()
    journal._spares.wait()
    assert recovery.index == index
    assert journal.room is not Room.OK
    ballast.unlink()
    journal.prepare()
    assert journal.room is Room.OK
    journal.append(1, index + 1, b"x" * 100_000)
    journal.close()


@pytest.mark.root
def test_a_torn_end_is_cut_even_on_a_full_disk(full_disk) -> None:
    state = full_disk / "state"
    cluster = busy_cluster(steps=20)
    write_journal(state, cluster.groups, segment_bytes=1 << 17)
    segment = next((state / "journal").glob("segment-*"))
    content = segment.read_bytes()
    used = len(content.rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.seek(used - 20)
        file.write(bytes(40))
    fill(full_disk)
    journal = FileJournal.open(state, segment_bytes=1 << 17, reserve_bytes=1 << 13)
    recovery = journal.recover()
    assert recovery.cut is not None
    assert recovery.index == len(cluster.groups) - 1
    journal.close()


@pytest.mark.root
def test_a_full_disk_harms_neither_snapshot_nor_history(full_disk) -> None:
    """Both are left as they were, and go on when there is room."""
    state = full_disk / "state"
    cluster = busy_cluster(steps=150)
    journal = FileJournal.open(state, segment_bytes=1 << 17, reserve_bytes=1 << 13)
    journal.recover()
    half = len(cluster.groups) // 4
    append_groups(journal, cluster.groups)
    journal._spares.wait()
    said: list = []
    follower = Follower(state, FollowerSettings(snapshot_interval_ms=0), said.append)
    follower.commit_seen(half)
    while follower.behind:
        follower.step()
    follower.snapshot()
    before = load_newest(state)[0].index
    ballast = fill(full_disk)
    follower.commit_seen(len(cluster.groups))
    follower.finish(final_snapshot=True)
    assert any("error" in message for message in said)
    snapshot, notes = load_newest(state)
    assert (snapshot.index, notes) == (before, ())
    ballast.unlink()
    follower._commit_due_s = 0.0  # the pause between two tries is over
    follower.finish(final_snapshot=True)
    snapshot, notes = load_newest(state)
    assert (snapshot.index, notes) == (len(cluster.groups), ())
    assert digest(snapshot.state) == digest(cluster.state)
    assert History(state / HISTORY_NAME).reach().index == len(cluster.groups)
    follower.close()
    journal.close()


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make the failing calls")
    library = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, HERE / "failing_calls.c", "-ldl"], check=True
    )
    return library


@pytest.mark.parametrize("after", [0, 3, 150])
def test_a_failed_fdatasync_ends_the_journal_and_is_never_tried_again(
    tmp_path, failing_calls, after: int
) -> None:
    """The second fdatasync would succeed and lie: the kernel may have dropped the pages. 150 is in a later segment."""
    environment = {**os.environ, "LD_PRELOAD": str(failing_calls), "FAIL_AFTER": str(after)}
    run = subprocess.run(
        [sys.executable, HERE / "append_child.py", tmp_path],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("acknowledged")] == [
        f"acknowledged {index}" for index in range(1, after + 1)
    ]
    assert lines[after:] == [f"broken {after + 1} OSError {errno.EIO}", "stays broken"]
    journal = FileJournal.open(tmp_path, segment_bytes=1 << 14, reserve_bytes=1 << 13)
    assert journal.recover().index >= after
    journal.close()


def test_after_a_failed_fdatasync_a_restart_writes_the_group_again_before_it_counts(
    tmp_path, failing_calls
) -> None:
    """After EIO the page may be clean and not on the disk. A sync alone would leave a hole in front of later groups."""
    state, platter = tmp_path / "state", tmp_path / "platter"
    platter.mkdir()
    base = {**os.environ, "LD_PRELOAD": str(failing_calls), "PLATTER": str(platter)}
    child = [sys.executable, HERE / "append_child.py", state]
    broken = subprocess.run(
        child, env={**base, "FAIL_AFTER": "3"}, capture_output=True, text=True, check=True, timeout=60
    )
    assert "broken 4" in broken.stdout
    again = subprocess.run([*child, "2"], env=base, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout.splitlines()[-1] == "acknowledged 6"
    # The power is cut: only the platter is left.
    for segment in platter.iterdir():
        shutil.copyfile(segment, state / "journal" / segment.name)
    journal = FileJournal.open(state, segment_bytes=1 << 14, reserve_bytes=1 << 13)
    assert journal.recover().index == 6
    journal.close()


def run_until_killed(script: str, directory: Path, library: Path, kill_at: int) -> tuple[bool, list[str]]:
    """Whether it was killed, and its output before."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "KILL_AT": str(kill_at)}
    run = subprocess.run(
        [sys.executable, HERE / script, directory, "3"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode in {0, -signal.SIGKILL}, run.stderr
    return run.returncode != 0, run.stdout.splitlines()


@pytest.mark.slow
def test_killed_before_any_call_of_a_snapshot_there_is_a_sound_one(tmp_path, failing_calls) -> None:
    """Not by chance: before the 1st, the 2nd, the 3rd ... call that changes a file, until it gets through."""
    cluster = busy_cluster(steps=20)
    write_snapshot(tmp_path, cluster.state, index=1, epoch=1)
    killed, kill_at = True, 0
    while killed:
        kill_at += 1
        before = load_newest(tmp_path)[0].index
        killed, lines = run_until_killed("snapshot_child.py", tmp_path, failing_calls, kill_at)
        snapshot, notes = load_newest(tmp_path)
        assert notes == ()
        assert snapshot.index >= max([before, *map(int, lines)])
        assert digest(snapshot.state) == digest(cluster.state)
    assert kill_at > 15


@pytest.mark.slow
def test_killed_before_any_call_of_the_journal_nothing_acknowledged_is_lost(tmp_path, failing_calls) -> None:
    """From an empty directory on: creating segments, appending, truncating leftovers of the previous kill."""
    acknowledged = 0
    for kill_at in range(1, 60):
        _, lines = run_until_killed("append_child.py", tmp_path, failing_calls, kill_at)
        acknowledged = max([acknowledged, *(int(line.split()[1]) for line in lines)])
        journal = FileJournal.open(tmp_path, segment_bytes=1 << 14, reserve_bytes=1 << 13)
        index = journal.recover().index
        journal.close()
        assert index in {acknowledged, acknowledged + 1}, kill_at
        acknowledged = index
    assert acknowledged > 100


def test_a_write_that_the_system_refuses_breaks_the_journal(tmp_path) -> None:
    """A limit on file size makes write fail with EFBIG, and Python keeps the error as the cause."""
    code = (
        "import resource, signal, sys\n"
        "from dgpu.journal.file import FileJournal\n"
        "from dgpu.journal.errors import JournalBroken\n"
        "journal = FileJournal.open(sys.argv[1], segment_bytes=65536, reserve_bytes=8192)\n"
        "journal.recover(); journal._spares.wait()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "journal.append(1, 1, b'x')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    journal.append(1, 2, b'y' * 500)\n"
        "except JournalBroken as error:\n    print(error.__cause__.errno)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(errno.EFBIG)
    journal = FileJournal.open(tmp_path, segment_bytes=65536, reserve_bytes=8192)
    assert journal.recover().index == 1
    journal.close()


@pytest.mark.slow
def test_kill_9_under_appends_loses_nothing_that_was_acknowledged(tmp_path) -> None:
    acknowledged = 0
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, HERE / "append_child.py", tmp_path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(random.randint(1, 150)):
            acknowledged = int(child.stdout.readline().split()[1])
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        if rest and rest[-1].startswith("acknowledged "):
            acknowledged = int(rest[-1].split()[1])
        journal = FileJournal.open(tmp_path, segment_bytes=1 << 14, reserve_bytes=1 << 13)
        assert journal.recover().index in {acknowledged, acknowledged + 1}
        journal.close()
