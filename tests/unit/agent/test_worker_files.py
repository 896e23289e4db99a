"""Files beside the socket of a worker: the names come from a process that may be hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dgpu.agent.workers import files


@pytest.mark.parametrize("kind", ["absolute", "above"])
def test_a_name_that_leaves_the_directory_is_neither_read_nor_deleted(tmp_path: Path, kind: str) -> None:
    """The agent may be root, and the worker chooses the name of its result."""
    directory = tmp_path / "worker"
    directory.mkdir()
    other = tmp_path / "other"
    other.write_bytes(b"abc")
    name = str(other) if kind == "absolute" else "../other"
    with pytest.raises(files.FileRefused, match="no name of a file"):
        files.open_result(str(directory), name, os.geteuid(), 3)
    files.delete(str(directory), name)
    assert other.read_bytes() == b"abc"


def test_a_result_is_read_and_deleted_in_the_directory_only(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "r")
    os.close(files.open_result(str(tmp_path), "r", os.geteuid(), 3))
    for name in ("link", "absent", ".", "", "a\0b"):
        with pytest.raises(files.FileRefused):
            files.open_result(str(tmp_path), name, os.geteuid(), 3)
    files.delete(str(tmp_path), "a\0b")
    files.delete(str(tmp_path), "r")
    assert not (tmp_path / "r").exists()
