"""Files with secrets: private, in memory where possible, and gone with their run."""

from __future__ import annotations

import base64
import os
import stat
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
    (tmp_path / "elsewhere").mkdir()
    dirs = SecretDirs(str(tmp_path / "base"))
    (tmp_path / "base").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="another user"):
        dirs.write(7, files(key=b"a"))
    (tmp_path / "base").unlink()
    (tmp_path / "base").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="another user"):
        dirs.write(7, files(key=b"a"))
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_can_belong_to_the_user_of_the_task(dirs) -> None:
    path = dirs.write(7, files(key=b"a"), owner=(65534, 65534))
    for each in (path, f"{path}/key"):
        assert (os.lstat(each).st_uid, os.lstat(each).st_gid) == (65534, 65534)


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
