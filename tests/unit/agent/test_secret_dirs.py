"""Files with secrets: private, in memory where possible, and gone with their run."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from pathlib import Path

import pytest

from dgpu.agent import secret_dirs
from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.run.runner import RunOrder
from dgpu.agent.secret_dirs import SecretDirs, secrets_dir_of


def files(**values: bytes) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def dirs(tmp_path: Path) -> SecretDirs:
    return SecretDirs(str(tmp_path / "base"))


def test_a_file_is_for_its_user_only(dirs) -> None:
    path = dirs.write(7, files(key=b"\0value"))
    assert (mode(path), mode(f"{path}/key")) == (0o700, 0o400)
    assert Path(path, "key").read_bytes() == b"\0value"


def test_nothing_stays_after_the_run(dirs, tmp_path: Path) -> None:
    first, second = dirs.write(7, files(key=b"a")), dirs.write(8, files(key=b"b"))
    dirs.remove(7)
    assert not Path(first).exists()
    assert Path(second).exists()
    dirs.remove(8)
    dirs.remove(8)
    assert not (tmp_path / "base").exists()


def test_a_new_scribe_removes_the_files_of_a_killed_one(dirs, tmp_path: Path) -> None:
    path = dirs.write(7, files(key=b"a"))
    SecretDirs(str(tmp_path / "base"))
    assert not Path(path).exists()


def test_a_directory_that_another_user_prepared_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    (tmp_path / "elsewhere").mkdir()
    dirs = SecretDirs(str(tmp_path / "base"))
    (tmp_path / "base").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="another user"):
        dirs.write(7, files(key=b"a"))
    (tmp_path / "base").unlink()
    (tmp_path / "base").mkdir()
    with pytest.raises(PermissionError, match="another user"):
        dirs.write(7, files(key=b"a"))
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_belong_to_the_user_of_the_task_and_their_directory_does_not(dirs) -> None:
    """The scribe removes the directory: a task must not be able to fill it."""
    path = dirs.write(7, files(key=b"a"), owner=(65534, 65534))
    found = [os.lstat(each) for each in (path, f"{path}/key")]
    assert [(each.st_uid, each.st_gid) for each in found] == [(0, 65534), (65534, 65534)]
    assert (mode(path), mode(f"{path}/key")) == (0o750, 0o400)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can move entries of other users")
@pytest.mark.parametrize("taken", ["empty", "filled", "file", "link"])
def test_root_takes_back_a_name_that_another_user_took(dirs, tmp_path: Path, taken: str) -> None:
    base = tmp_path / "base"
    if taken == "file":
        base.touch()
    elif taken == "link":
        base.symlink_to(tmp_path)
    else:
        base.mkdir()
        for number in range(taken == "filled"):
            (base / str(number)).mkdir()
    os.chown(base, 65534, 65534, follow_symlinks=False)
    SecretDirs(str(base))
    path = dirs.write(7, files(key=b"a"))
    assert Path(path, "key").read_bytes() == b"a"
    assert (os.lstat(base).st_uid, mode(base), list(base.iterdir())) == (0, 0o711, [base / "7"])
    assert len(list(tmp_path.iterdir())) == (2 if taken == "filled" else 1)


def test_a_tree_too_deep_to_remove_stops_nothing(dirs, tmp_path: Path) -> None:
    path = dirs.write(7, files(key=b"a"))
    subprocess.run(
        ["sh", "-c", "for i in $(seq 1200); do mkdir d && cd -P d || exit 1; done"], cwd=path, check=True
    )
    dirs.remove(7)
    again = SecretDirs(str(tmp_path / "base"))
    assert Path(again.write(8, files(key=b"b")), "key").read_bytes() == b"b"
    subprocess.run(["rm", "-rf", tmp_path / "base"], check=True)


def test_two_keepers_do_not_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(directory: str) -> str:
        return secrets_dir_of(KeeperSettings(directory=directory, work_dir="/w", output_dir="/o"))

    monkeypatch.setattr(secret_dirs, "_is_in_memory", lambda _: True)
    assert of("/a").startswith("/dev/shm/dgpu-")
    assert of("/a") != of("/b")
    monkeypatch.setattr(secret_dirs, "_is_in_memory", lambda _: False)
    assert of("/a") == "/w/.secrets"


def test_an_order_in_a_log_shows_no_value() -> None:
    order = RunOrder(
        lease_id=1,
        task_id=2,
        attempt=1,
        detail=b'{"env":{"A":"word"}}',
        env={"B": "word"},
        secret_files={"f": b"word"},
    )
    assert "word" not in repr(order)
    assert "word" not in str([order])
