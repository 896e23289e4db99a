"""Files below a task's directory: nothing outside is ever read, whatever the task does to its tree."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from dgpu.agent import files
from dgpu.agent.files import FilesError, Root, list_files, open_file


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "task"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "model.pt").write_bytes(b"weights")
    (root / "latest").symlink_to("sub")
    (root / "sub" / "up").symlink_to("../sub/model.pt")
    (tmp_path / "secret").write_text("secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "relative").symlink_to("../secret")
    (root / "sub" / "out").symlink_to("../../secret")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


def content(root, path: bytes) -> bytes:
    opened = open_file(Root(str(root)), path)
    try:
        return os.read(opened.fd, 100)
    finally:
        os.close(opened.fd)


def refusal(root, path: bytes) -> str:
    with pytest.raises(FilesError) as refused:
        open_file(Root(str(root)), path)
    return refused.value.code


@pytest.mark.parametrize(
    "path", [b"sub/model.pt", b"./sub//model.pt", b"latest/model.pt", b"sub/up", b"latest/up"]
)
def test_a_file_below_the_directory_is_read_also_through_links_that_stay_below(tree, path: bytes) -> None:
    assert content(tree, path) == b"weights"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (b"../secret", "bad_path"),
        (b"sub/../../secret", "bad_path"),
        (b"/etc/passwd", "bad_path"),
        (b"sub/\0", "bad_path"),
        (b"x" * 5_000, "bad_path"),
        (b"/".join([b"d"] * 200), "not_found"),
        (b"absolute", "leads_out"),
        (b"relative", "leads_out"),
        (b"sub/out", "leads_out"),
        (b"loop", "leads_out"),
        (b"nothing", "not_found"),
        (b"sub/model.pt/x", "not_found"),
        (b"sub", "is_directory"),
        (b"", "is_directory"),
        (b"pipe", "not_a_file"),
    ],
)
def test_a_path_leads_nowhere_else(tree, path: bytes, code: str) -> None:
    assert refusal(tree, path) == code


def test_a_socket_and_a_device_are_no_files(tree) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        where = Path.cwd()
        os.chdir(tree)
        try:
            bound.bind("socket")
        finally:
            os.chdir(where)
    assert refusal(tree, b"socket") == "not_a_file"
    assert refusal("/dev", b"null") == "not_a_file"


def test_a_directory_of_its_own_that_the_task_replaced_by_a_link_is_gone(tree, tmp_path) -> None:
    link = tmp_path / "task-1.1"
    link.symlink_to("/etc")
    with pytest.raises(FilesError) as refused:
        list_files(Root(str(link), is_own=True), b"", after=b"", limit=10)
    assert refused.value.code == "directory_gone"
    assert list_files(Root(str(link)), b"", after=b"", limit=1).entries


def test_a_directory_is_listed_page_by_page(tree) -> None:
    names: list[bytes] = []
    after, more = b"", True
    while more:
        page = list_files(Root(str(tree)), b"", after=after, limit=2)
        names += [entry.name for entry in page.entries]
        after, more = names[-1], page.more
    assert names == [b"absolute", b"latest", b"loop", b"pipe", b"relative", b"sub"]
    (file,) = list_files(Root(str(tree)), b"sub/model.pt", after=b"", limit=2).entries
    assert (file.kind, file.size_bytes) == ("file", 7)


def test_a_name_that_is_no_text_is_listed(tree) -> None:
    (tree / os.fsdecode(b"sub/\xff\xfe")).touch()
    names = [entry.name for entry in list_files(Root(str(tree)), b"sub", after=b"", limit=10).entries]
    assert b"\xff\xfe" in names


def test_a_directory_with_too_many_entries_is_refused(tree, monkeypatch) -> None:
    monkeypatch.setattr(files, "MAX_SCANNED", 3)
    with pytest.raises(FilesError) as refused:
        list_files(Root(str(tree)), b"", after=b"", limit=2)
    assert refused.value.code == "too_many_files"


def test_descriptors_are_closed(tree) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (b"sub/model.pt", b"absolute", b"nothing", b"sub", b"loop", b"pipe"):
        try:
            os.close(open_file(Root(str(tree)), path).fd)
        except FilesError:
            continue
    list_files(Root(str(tree)), b"sub", after=b"", limit=10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_that_is_swapped_for_a_link_all_the_time_never_leads_out(tree, tmp_path) -> None:
    """The race that a check of the path beforehand loses."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "model.pt").write_text("secret")
    (tree / "swap").mkdir()
    (tree / "swap" / "model.pt").write_bytes(b"weights")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            (tree / "swap").rename(tree / "aside")
            (tree / "swap").symlink_to(outside)
            (tree / "swap").unlink()
            (tree / "aside").rename(tree / "swap")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    try:
        for _ in range(3_000):
            try:
                seen.add(content(tree, b"swap/model.pt").decode())
            except FilesError as error:
                seen.add(error.code)
    finally:
        done.set()
        swapping.join()
    assert "secret" not in seen
    assert seen <= {"weights", "leads_out", "not_found"}
