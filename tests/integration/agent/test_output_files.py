"""Copies of a task's output in files: written by a real scribe, opened by the process that becomes the task."""

from __future__ import annotations

import os
import resource

import pytest

from dgpu.agent.output_files import MAX_WAITING_BYTES

from .keeping import Kept

pytestmark = pytest.mark.slow


@pytest.fixture
def kept(tmp_path):
    keeper = Kept(tmp_path)
    yield keeper
    keeper.close()


@pytest.fixture
def work(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def files(output="", errors="", *, anew=True):
    given = {"output": output, "errors": errors}
    return {"files": {name: path for name, path in given.items() if path} | {"anew": anew}}


def test_streams_have_their_own_files_or_share_one(kept, work) -> None:
    command = "echo out; echo err >&2; exit 3"
    kept.spawn(1, command, cwd=str(work), **files("a.out", str(work / "a.err")))
    kept.spawn(2, command, cwd=str(work), **files("both"))
    kept.spawn(3, command, cwd=str(work), **files(errors="only.err"))
    kept.spawn(4, command, cwd=str(work), **files("/dev/null", "same"))
    for lease in range(1, 5):
        assert kept.wait_ended(lease)["exit_code"] == 3
        assert sorted(kept.output(lease).split()) == [b"err", b"out"]
    written = {path.name: sorted(path.read_text().split()) for path in work.iterdir()}
    assert written == {
        "a.out": ["out"],
        "a.err": ["err"],
        "both": ["err", "out"],
        "only.err": ["err"],
        "same": ["err"],
    }


def test_the_first_attempt_begins_a_file_anew_and_later_ones_continue_it(kept, work) -> None:
    (work / "log").write_text("of an earlier task\n")
    for lease, anew in ((1, True), (2, False)):
        kept.spawn(lease, f"echo {lease}", cwd=str(work), **files("log", anew=anew))
        assert kept.wait_ended(lease)["exit_code"] == 0
    assert (work / "log").read_text() == "1\n2\n"


def test_a_file_that_cannot_be_opened_is_named_and_nothing_runs(kept, work) -> None:
    os.mkfifo(work / "fifo")
    (work / "device").symlink_to("/dev/full")
    refused = {
        "missing/log": "No such file or directory",
        "/proc/self/no": "No such file or directory",
        ".": "Is a directory",
        "fifo": "No such device or address",  # it has no reader
        "device": "Not a regular file",
    }
    for lease, (path, why) in enumerate(refused.items(), start=1):
        kept.spawn(lease, "touch ran", cwd=str(work), **files("good", path))
        end = kept.wait_ended(lease)
        assert (end["outcome"], end["exit_code"]) == ("cannot_start", 126)
        assert end["error"].startswith(f"output file {path}: {why}. Its directory must exist on the node")
    assert not (work / "ran").exists()


def test_a_copy_that_fails_is_reported_once_in_the_output_and_the_task_goes_on(kept, work) -> None:
    size = 1 << 30
    (work / "log").touch()
    os.truncate(work / "log", size)
    resource.prlimit(kept.scribe_pid, resource.RLIMIT_FSIZE, (size, size))  # this file cannot grow
    command = f"echo 1; until grep -q dgpu {kept.directory}/output/1/0*; do echo 2; sleep 0.05; done; echo 3"
    kept.spawn(1, command, cwd=str(work), **files("log", anew=False))
    assert kept.wait_ended(1)["exit_code"] == 0
    assert kept.output(1).count(b"[dgpu: the output file is incomplete: File too large]") == 1
    assert kept.output(1).endswith(b"3\n")


def test_much_output_is_complete_in_the_file_when_the_task_has_ended(kept, work) -> None:
    size = 3 * MAX_WAITING_BYTES + 7
    kept.spawn(1, f"head -c {size} /dev/zero", cwd=str(work), **files("zeros"))
    assert kept.wait_ended(1)["output_bytes"] == size
    assert (work / "zeros").stat().st_size == size
