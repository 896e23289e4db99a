"""Archives on the node: nothing outside of the directory is written, whatever the archive says."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.agent.unpack import CannotUnpack, unpack
from dgpu.client.packing import packed

PLENTY = 1 << 30


def archive(*entries: tuple[str, bytes | tarfile.TarInfo]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in entries:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo("x")
    info.type, info.linkname = kind, target
    return info


def refusal(made: io.BytesIO, root: Path, max_bytes: int = PLENTY) -> str:
    with pytest.raises(CannotUnpack) as refused:
        unpack(made, str(root), max_bytes)
    return str(refused.value)


def test_a_packed_project_comes_out_as_it_was(tmp_path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    (source / "main.py").write_text("1")
    (source / "sub" / "run.sh").write_text("2")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "sub" / "link").symlink_to("../main.py")
    with packed(source, PLENTY, lambda *_: None) as made, made.path.open("rb") as file:
        unpack(file, str(target), PLENTY)
    assert (target / "sub" / "link").read_text() == "1"
    assert os.access(target / "sub" / "run.sh", os.X_OK)
    assert not os.access(target / "main.py", os.X_OK)
    assert (target / "main.py").stat().st_mtime == 946_684_800


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a/" * 200 + "x"])
def test_a_path_out_of_the_project_is_refused(tmp_path, name: str) -> None:
    assert "leads out of the project" in refusal(archive((name, b"x")), tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_file_is_written_through_a_link(tmp_path) -> None:
    """The link alone would be refused only at the end."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    refusal(archive(("door", link(str(outside))), ("door/x", b"x")), root)
    assert not list(outside.iterdir())
    refusal(archive(("file", link(str(outside / "y"))), ("file", b"x")), root)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("target", ["/etc/passwd", "../..", "here/.."])
def test_a_link_that_leads_out_is_refused_by_name(tmp_path, target: str) -> None:
    made = archive(("here", link(".")), ("bad", link(target)))
    assert "the link 'bad', which leads out" in refusal(made, tmp_path)


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE])
def test_devices_pipes_and_hard_links_are_refused(tmp_path, kind: bytes) -> None:
    assert "'x', which is no file" in refusal(archive(("x", link("/etc/passwd", kind))), tmp_path)


def test_an_archive_that_grows_too_much_is_refused(tmp_path) -> None:
    assert "more bytes than allowed" in refusal(archive(("zeros", bytes(1 << 20))), tmp_path, 1 << 19)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_a_damaged_archive_is_refused(tmp_path, content: bytes) -> None:
    assert "not a valid archive" in refusal(io.BytesIO(content), tmp_path)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of 1 MiB needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_the_nodes_fault(small_disk) -> None:
    """The task may start on another node."""
    with pytest.raises(CannotUnpack, match="no room on the node to unpack the upload") as refused:
        unpack(archive(("noise", os.urandom(2 << 20))), str(small_disk), PLENTY)
    assert refused.value.is_of_node
