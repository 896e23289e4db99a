"""A scheduler on a full copy-on-write disk: preallocated blocks do not help there, each write needs new ones."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.service.serving import Served, listed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def cow_disk(tmp_path: Path) -> Iterator[Path]:
    """A btrfs on a loop device, about as small as it can be: it is filled soon."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    for command in (["mkfs.btrfs", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed (Debian: btrfs-progs, mount)")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"cannot mount a btrfs here: {error.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], Served]]:
    started: list[Served] = []

    def begin(state: Path) -> Served:
        started.append(Served(state, log=tmp_path / "log", segment_bytes=1 << 20))
        return started[-1]

    yield begin
    for served in started:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def fill(place: Path) -> list[Path]:
    """In ever smaller pieces, synced, until not even a page fits."""
    ballast = []
    for size in (1 << 20, 1 << 16, 1 << 12):
        path = place / f"ballast-{size}"
        ballast.append(path)
        with path.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(os.urandom(size))
                    if size < 1 << 20:
                        os.fsync(file.fileno())
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast


def submitted(served: Served) -> tuple[list[str], int]:
    """Tasks that were acknowledged before the first refusal, and its status."""
    ids = []
    for number in range(1_000):
        status, answer = served.try_to_ask("/api/v1/tasks", {"command": "x" * 20_000, "name": f"t{number}"})
        if status != 200:
            assert status == 507, answer
            return ids, status
        ids.append(answer["task_id"])
    raise AssertionError("the disk never got full")


def share_blocks(state: Path) -> None:
    """As a snapshot of the file system does: the next overwrite of each block needs a new one."""
    copies = state / "copies"
    copies.mkdir()
    for path in (state / "journal").iterdir():
        subprocess.run(["cp", "--reflink=always", path, copies / path.name], check=True)


@pytest.mark.root
@pytest.mark.parametrize("shared", [False, True], ids=["own-blocks", "shared-blocks"])
def test_submits_get_507_reads_go_on_and_nothing_acknowledged_is_lost(
    cow_disk: Path, start: Callable[[Path], Served], shared: bool
) -> None:
    state = cow_disk / "state"
    served = start(state)
    for number in range(5):
        served.ask("/api/v1/tasks", {"command": "true", "name": f"early-{number}"})
    early = listed(served)
    if shared:
        share_blocks(state)
    ballast = fill(cow_disk)
    later, status = submitted(served)
    assert status == 507
    assert not (shared and later)
    first = early | set(later)
    assert listed(served) == first
    status, ready = served.try_to_ask("/ready")
    assert (status, ready["storage_full"]) == (503, True)
    assert served.process.poll() is None

    served.end(signal.SIGKILL)
    again = start(state)
    assert listed(again) == first
    more, status = submitted(again)  # the kill may have given some blocks back
    assert status == 507
    assert listed(again) == first | set(more)
    assert again.ask("/health")["status"] == "ok"

    for path in ballast:
        path.unlink()
    os.sync()
    deadline = time.monotonic() + 60
    while (answer := again.try_to_ask("/api/v1/tasks", {"command": "true"}))[0] != 200:
        assert time.monotonic() < deadline, answer
        time.sleep(0.5)
    known = {*first, *more, answer[1]["task_id"]}
    assert listed(again) == known
    again.end(signal.SIGKILL)
    assert listed(start(state)) == known
