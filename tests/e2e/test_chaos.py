"""`dgpu chaos` as a user runs it: a verdict, an exit code, and nothing left behind."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_SECONDS = 180


@pytest.fixture
def place(monkeypatch):
    """Directories of the run are made here. Short: the path of a Unix socket has room for 107 bytes."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-c-"))
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    for file in place.iterdir():
        pytest.fail(f"{file} was left")
    place.rmdir()


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "dgpu", "chaos", "--seed", "7", "--rate", "20", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(process, word):
    """All lines up to the one with the word."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError(f"no {word!r} in:\n{''.join(lines)}")


def living(place):
    """Command lines of processes that belong to the run."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line:
            found.append(line)
    return found


def test_a_run_prints_seed_faults_and_verdict_and_leaves_nothing(place) -> None:
    process = start("--no-network", "--rounds", "1", "--fault", "kill-agent")
    told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, told
    assert told.startswith("Seed 7, 20 submits per second. Faults: kill-agent.\n")
    assert "kill-agent           n1" in told
    assert "Faults: 1 kill-agent." in told
    assert told.endswith("Verdict: good. Seed 7.\n")
    assert living(place) == []


def test_ctrl_c_ends_a_run_with_a_verdict_so_far(place) -> None:
    process = start("--no-network", "--minutes", "60", "--fault", "kill-agent")
    until(process, "kill-agent           n1")
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, told
    assert told.endswith("Verdict so far (interrupted): good. Seed 7.\n")
    assert living(place) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--fault", "kill-everything"), "--fault: expected one of kill-master,"),
        (("--no-network", "--fault", "cut-agent"), "--fault cut-agent: not with --no-network."),
        (("--minutes", "0"), "expected more than 0 and at most 1440"),
    ],
)
def test_a_wrong_option_is_refused_by_name(place, arguments, expected) -> None:
    process = start(*arguments)
    told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert expected in told
