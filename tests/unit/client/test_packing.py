"""Archives of projects: what is in them, and what is refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from dgpu.client.packing import CannotPack, packed

PLENTY = 1 << 30


def project(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names_in(root: Path) -> list[str]:
    with packed(root, PLENTY, lambda *_: None) as archive, tarfile.open(archive.path) as tar:
        return tar.getnames()


def digest_of(root: Path) -> str:
    with packed(root, PLENTY, lambda *_: None) as archive:
        return archive.sha256


def refusal(root: Path, max_bytes: int = PLENTY) -> str:
    with pytest.raises(CannotPack) as refused, packed(root, max_bytes, lambda *_: None):
        pass
    return str(refused.value)


def test_the_archive_depends_on_contents_and_not_on_times(tmp_path) -> None:
    """Otherwise every checkout would be sent again."""
    first = project(tmp_path / "a", main_py="print(1)", sub__x_txt="x")
    second = tmp_path / "b"
    shutil.copytree(first, second)
    os.utime(second / "main.py", (1, 1))
    assert digest_of(first) == digest_of(second)
    (second / "main.py").chmod(0o755)
    assert digest_of(first) != digest_of(second)


def test_files_that_git_ignores_are_left_out_and_new_ones_are_not(tmp_path) -> None:
    root = project(tmp_path, main_py="1", new_py="2", data_bin="3", sub__data_bin="4")
    (root / ".gitignore").write_text("*.bin\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "main.py", ".gitignore"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    assert names_in(root) == [".gitignore", "main.py", "new.py"]
    (root / "main.py").unlink()  # git still lists it
    assert names_in(root) == [".gitignore", "new.py"]


def test_without_git_everything_is_packed_but_what_dgpuignore_names(tmp_path) -> None:
    root = project(tmp_path, main_py="1", sub__big_bin="2", runs__a__log_txt="3", keep__runs_txt="4")
    (root / ".dgpuignore").write_text("# comment\n*.bin\n/runs/\n")
    assert names_in(root) == [".dgpuignore", "keep", "keep/runs.txt", "main.py", "sub"]
    (root / ".dgpuignore").write_text("!main.py\n")
    assert "line 1: '!main.py' is not supported" in refusal(root)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "here/.."])
def test_a_link_out_of_the_project_is_refused_by_name(tmp_path, target: str) -> None:
    root = project(tmp_path / "project", main_py="1", sub__x_txt="2")
    (root / "here").symlink_to(".")  # `here/..` leads out, although it looks as if it did not
    (root / "bad").symlink_to(target)
    assert f"the link 'bad' leads out of the project, to '{target}'" in refusal(root)


def test_a_link_that_stays_inside_is_packed(tmp_path) -> None:
    root = project(tmp_path, main_py="1", sub__x_txt="2")
    (root / "sub" / "link").symlink_to("../main.py")
    assert "sub/link" in names_in(root)


def test_a_device_or_pipe_is_refused_by_name(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "'pipe' is no file, directory or link" in refusal(tmp_path)


def test_a_large_project_is_refused_before_a_file_is_read(tmp_path) -> None:
    """A sparse file of 5 GB would take minutes to pack."""
    root = project(tmp_path, main_py="1")
    with (root / "weights.bin").open("wb") as file:
        file.truncate(5_000_000_000)
    said = refusal(root)
    assert (
        "has 5.0 GB in 2 files, at most 1.1 GB are allowed. The largest: weights.bin (5.0 GB). Leave" in said
    )


def test_a_missing_directory_is_refused(tmp_path) -> None:
    assert "is no directory" in refusal(tmp_path / "nope")
