"""The demo is the first thing anybody sees."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from .conftest import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def leftovers(directory):
    """Processes that name the demo's directory on their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(directory).encode() in command and int(entry.name) != os.getpid():
            found.append(command)
    return found


@pytest.fixture
def demo_dir():
    with tempfile.TemporaryDirectory(prefix="dg-") as directory:
        yield pathlib.Path(directory)


def start(directory):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
    return subprocess.Popen(
        [sys.executable, "-m", "dgpu", "demo"],
        env={**env, "TMPDIR": str(directory), "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_demo_holds_every_promise_and_leaves_nothing_behind(demo_dir):
    process = start(demo_dir)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err
    for part in ("refused at once", "kill -9 of the scheduler", "kill -9 of the agent", "What happened"):
        assert part in out
    assert "NOT SO" not in out
    assert leftovers(demo_dir) == []
    assert list(demo_dir.iterdir()) == []


def test_a_demo_that_is_interrupted_cleans_up(demo_dir):
    process = start(demo_dir)
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "tasks submitted" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, seen
    eventually(lambda: not leftovers(demo_dir), "all processes to be gone")
    assert list(demo_dir.iterdir()) == []
