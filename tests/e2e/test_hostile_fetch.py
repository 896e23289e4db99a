"""`dgpu fetch` while a hostile tenant swaps files and directories with links: on the node, and in the target."""

from __future__ import annotations

import collections
import contextlib
import itertools
import shutil
import threading

from .conftest import eventually
from .hostile_site import WORD, hostile, needs_two_users, python_line

__all__ = ["hostile"]
pytestmark = needs_two_users

SWAP = """
import os, sys
theirs, size = sys.argv[1], 4 << 20
os.mkdir("real")
for name in ("real/a", "real/b", "plain"):
    with open(name, "w") as file:
        file.write("b" * size)
print("ready", flush=True)
while True:
    for source in (theirs + "/file", "/etc/shadow", "/etc/passwd"):
        os.link("plain", "next")
        os.rename("next", "swapped")
        os.symlink(source, "next")
        os.rename("next", "swapped")
    os.symlink(theirs, "folder")
    os.unlink("folder")
    os.rename("real", "folder")
    os.symlink(theirs + "/file", "next")
    os.rename("next", "folder/a")
    os.link("plain", "next")
    os.rename("next", "folder/a")
    os.rename("folder", "real")
"""


def test_a_fetch_during_a_race_copies_only_files_of_the_task(hostile):
    """The administrator fetches the files of bob, who swaps them with links all the time."""
    theirs = hostile.site.task(hostile.task)["workdir"]
    task = hostile.bob.submit(python_line(SWAP, theirs))
    eventually(lambda: "ready" in hostile.bob.output(task), "the race to begin")
    own, outcomes = b"b" * (4 << 20), collections.Counter()

    def fetched() -> bool:
        into = hostile.site.home / f"fetched-{outcomes.total()}"
        done = hostile.site.dgpu("fetch", task, "-o", into)
        assert "Traceback" not in done.err, done
        assert WORD not in done.out + done.err.replace(theirs, ""), done
        for path in into.rglob("*"):
            assert not path.is_symlink(), path
            assert path.is_dir() or path.read_bytes() == own, path
        shutil.rmtree(into, ignore_errors=True)
        outcomes["link" if done.code or "it is a link to" in done.err else "no link"] += 1
        return outcomes.total() >= 8 and bool(outcomes["link"])

    eventually(fetched, "fetches that met a link", seconds=300)
    hostile.bob.ask("DELETE", f"/api/v1/tasks/{task}")
    hostile.unharmed()


def test_a_fetch_into_a_directory_of_others_writes_nothing_outside(hostile):
    """Another user of the machine swaps a directory of the target with a link during the fetch."""
    task = hostile.bob.submit("mkdir sub; for i in $(seq 200); do echo of bob > sub/$i; done; echo done")
    eventually(lambda: "done" in hostile.bob.output(task), "the files")
    outside, into, stop = hostile.site.home / "outside", hostile.site.home / "open", threading.Event()
    outside.mkdir()
    (into / "sub").mkdir(parents=True)

    def swap() -> None:
        for number in itertools.count():  # the fetch makes the directory again whenever it is missing
            with contextlib.suppress(OSError):
                (into / "sub").rename(into / f"moved-{number}")
            with contextlib.suppress(OSError):
                (into / "sub").symlink_to(outside)
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                (into / "sub").unlink()

    outcomes = collections.Counter()

    def fetched() -> bool:
        done = hostile.site.dgpu("fetch", task, "-o", into, "--force")
        assert "Traceback" not in done.err, done
        assert list(outside.iterdir()) == []
        outcomes["refused" if "is a link" in done.err else "other"] += 1
        return outcomes.total() >= 3 and bool(outcomes["refused"])

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        eventually(fetched, "a fetch that met the link", seconds=300)
    finally:
        stop.set()
        swapper.join()
