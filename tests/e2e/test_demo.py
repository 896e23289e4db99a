"""The demo is the first contact with dgpu."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import httpx
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


def start(directory, **files):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "dgpu", "demo"],
        env={**env, "TMPDIR": str(directory), "HOME": str(directory), "TERM": "xterm", "COLUMNS": "160"},
        text=True,
        start_new_session=True,
        **(files or pipes),
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


def test_on_a_terminal_it_stays_with_something_to_look_at(demo_dir):
    keyboard, terminal = os.openpty()
    process = start(demo_dir, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = ""
    while "Enter or Ctrl-C ends it" not in seen:
        try:
            seen += os.read(keyboard, 65_536).decode(errors="replace")
        except OSError:
            pytest.fail(f"the demo ended by itself and said:\n{seen[-3_000:]}")
    try:
        url = re.findall(r"DGPU_SERVER=(http://127\.0\.0\.1:\d+)", seen)[-1]
        assert seen.count(f"{url}/#code=") == 2, "at the beginning, to watch, and at the end"
        page = httpx.get(url, timeout=PATIENCE_SECONDS)
        assert page.headers["content-type"].startswith("text/html")
        board = httpx.get(f"{url}/api/v1/board", timeout=PATIENCE_SECONDS).json()
        assert board["counts"]["running"] > 0
        assert board["counts"]["waiting"] > 20
    finally:
        os.write(keyboard, b"\n")
    with contextlib.suppress(OSError):
        while os.read(keyboard, 65_536):
            pass
    assert process.wait(PATIENCE_SECONDS) == 0
    os.close(keyboard)
    assert leftovers(demo_dir) == []
    assert list(demo_dir.iterdir()) == []
