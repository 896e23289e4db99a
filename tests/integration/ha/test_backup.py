"""A backup of a running scheduler, restored to another directory and started there."""

from __future__ import annotations

import io
import json
import signal
import stat
import subprocess
import sys
import tarfile

import pytest

from dgpu.core.digest import digest
from dgpu.entry.ha.backup import back_up, restore
from dgpu.entry.ha.errors import HaFailure
from dgpu.service.recovery.lost_tail import readable_state
from integration.service.serving import Served, listed


@pytest.fixture
def running(tmp_path):
    served = Served(tmp_path / "state")
    yield served
    if served.process.poll() is None:
        served.end(signal.SIGKILL)


def submit(served: Served, count: int) -> None:
    task = {"command": "true", "held": True, "env": {"SECRET": "s3cret-value"}}
    served.ask("/api/v1/tasks/batch", {"task": task, "count": count})


def dgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dgpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_backup_of_a_running_scheduler_comes_back_whole(running, tmp_path) -> None:
    submit(running, 300)
    made = dgpu("ha", "backup", str(tmp_path / "b.tar.gz"), "--dir", str(tmp_path / "state"), "-o", "json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["tasks"] == 300
    submit(running, 7)  # after the backup: not in it
    everything = listed(running)
    running.end(signal.SIGTERM)
    done = dgpu("ha", "restore", str(tmp_path / "b.tar.gz"), "--dir", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    again = Served(tmp_path / "new")
    try:
        assert listed(again) == {f"task-{number}" for number in range(1, 301)}
        assert listed(again) < everything
        assert again.at["epoch"] > running.at["epoch"]  # leases are never reused
        submit(again, 1)
    finally:
        again.end(signal.SIGTERM)


def test_the_restored_state_is_equal(running, tmp_path) -> None:
    submit(running, 20)
    running.end(signal.SIGTERM)
    saved = back_up(tmp_path / "state", tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", tmp_path / "new")
    before, after = readable_state(tmp_path / "state"), readable_state(tmp_path / "new")
    assert digest(after[0]) == digest(before[0]) == saved.digest
    assert after[1] == before[1] == saved.index
    for name in ("token.key", "secrets.key"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "state" / name).read_bytes()


def test_a_backup_is_private_and_replaces_nothing(running, tmp_path) -> None:
    target = tmp_path / "b.tar.gz"
    back_up(tmp_path / "state", target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(HaFailure, match="exists already"):
        back_up(tmp_path / "state", target)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_restore_replaces_nothing(running, tmp_path) -> None:
    back_up(tmp_path / "state", tmp_path / "b.tar.gz")
    with pytest.raises(HaFailure, match="is not empty"):
        restore(tmp_path / "b.tar.gz", tmp_path / "state")


def test_another_directory_is_not_backed_up(tmp_path) -> None:
    with pytest.raises(HaFailure, match="not the directory of a scheduler"):
        back_up(tmp_path, tmp_path / "b.tar.gz")


def repacked(source, target, change) -> None:
    """The same archive, but for what `change` does to its files."""
    with tarfile.open(source) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    change(files)
    with tarfile.open(target, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def flip(files) -> None:
    files["state.json"] = files["state.json"].replace(b"task", b"tusk", 1)


def escape(files) -> None:
    manifest = json.loads(files["manifest.json"])
    manifest["sha256"]["../escaped"] = "00"
    files["manifest.json"] = json.dumps(manifest).encode()
    files["../escaped"] = b"x"


def add(files) -> None:
    files["extra"] = b"x"


def drop(files) -> None:
    del files["token.key"]


def newer(files) -> None:
    files["manifest.json"] = files["manifest.json"].replace(b"dgpu-backup-1", b"dgpu-backup-9")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flip, "state.json is missing or has changed"),
        (escape, "no part of a backup"),
        (add, "which its list does not name"),
        (drop, "token.key is missing"),
        (newer, "this version reads 'dgpu-backup-1'"),
    ],
)
def test_a_changed_backup_is_refused_and_nothing_is_written(running, tmp_path, change, why) -> None:
    submit(running, 3)
    back_up(tmp_path / "state", tmp_path / "b.tar.gz")
    repacked(tmp_path / "b.tar.gz", tmp_path / "bad.tar.gz", change)
    with pytest.raises(HaFailure, match=why):
        restore(tmp_path / "bad.tar.gz", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path.parent / "escaped").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b" + b"\0" * 100])
def test_another_file_is_not_restored(tmp_path, content) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(HaFailure):
        restore(tmp_path / "b.tar.gz", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar.gz"]


def test_a_backup_that_is_cut_is_refused(running, tmp_path) -> None:
    submit(running, 3)
    back_up(tmp_path / "state", tmp_path / "b.tar.gz")
    content = (tmp_path / "b.tar.gz").read_bytes()
    for size in range(0, len(content) - 1_024, len(content) // 40):  # the very end is only filling
        (tmp_path / "cut.tar.gz").write_bytes(content[:size])
        with pytest.raises(HaFailure):
            restore(tmp_path / "cut.tar.gz", tmp_path / "new")
    assert not (tmp_path / "new").exists()
