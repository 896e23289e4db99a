"""The signal of a task before its end: at its time limit and at a pre-emption. The keeper sends it alone."""

from __future__ import annotations

import sys

import pytest

from integration.agent.keeping import Kept, wait_for, word

pytestmark = pytest.mark.slow

USR1 = 10
LONG_MS = 3_600_000

# Notes each signal. USR1 writes a checkpoint and ends only if it is told so; TERM ends.
TRAINING = """
import signal, sys, time
def note(number, frame):
    with open("signals", "a") as file:
        print(signal.Signals(number).name, file=file)
    if number == signal.SIGTERM or "--stop" in sys.argv:
        open("checkpoint", "w").write("step 7")
        sys.exit(9)
signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGTERM, note)
open("ready", "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    keeper = Kept(tmp_path)
    yield keeper
    keeper.close()


def train(kept, tmp_path, *flags: str, before: str = "", after: str = "", **facts) -> None:
    """`before` and `after` keep a shell around the program, which does not handle the signal."""
    program = f"{sys.executable} train.py {' '.join(flags)}"
    kept.spawn(1, f"{before}{program}{after}", cwd=str(tmp_path), signal=[USR1, LONG_MS], **facts)


def signals(tmp_path) -> list[str]:
    file = tmp_path / "signals"
    return file.read_text().split() if file.exists() else []


def test_a_checkpoint_is_written_before_the_time_limit_without_an_agent(kept, tmp_path) -> None:
    """The signal is due at once; it waits until the program handles it, and the shell around it lives on."""
    train(kept, tmp_path, "--stop", before="cd .; ", after="; echo code $?", timeout_ms=LONG_MS)
    kept.wait_started(1)
    kept.disconnect()
    wait_for((tmp_path / "checkpoint").exists)
    kept.connect()
    end = kept.known[1].get("end") or kept.wait_ended(1)  # it may have ended before
    assert end["outcome"] == "exited"
    assert kept.output(1) == b"code 9\n"
    assert signals(tmp_path) == ["SIGUSR1"]


WAITING = """
import pathlib, signal, sys, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def wait():
    signal.sigwait([signal.SIGUSR1])
    pathlib.Path("checkpoint").write_text("step 7")
if "--thread" in sys.argv:  # beside work that never sleeps
    waiter = threading.Thread(target=wait)
    waiter.start()
    while waiter.is_alive():
        pass
else:
    wait()
"""


@pytest.mark.parametrize("flag", ["", "--thread"])
def test_a_program_that_waits_with_sigwait_gets_the_signal(kept, tmp_path, flag) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    train(kept, tmp_path, flag, before="cd .; ", after="; echo code $?", timeout_ms=LONG_MS)
    assert kept.wait_ended(1)["outcome"] == "exited"
    assert kept.output(1) == b"code 0\n"
    assert (tmp_path / "checkpoint").exists()


def test_a_preemption_begins_with_the_signal_and_ends_with_term(kept, tmp_path) -> None:
    train(kept, tmp_path, before="exec ", grace_ms=10_000)
    wait_for((tmp_path / "ready").exists)
    kept.send({"warn": [1], "stop": [[1, 10_000, "stopped"]]})
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("stopped", 9)
    assert signals(tmp_path) == ["SIGUSR1", "SIGTERM"]


def test_a_cancel_sends_no_signal_but_term(kept, tmp_path) -> None:
    train(kept, tmp_path, before="exec ")
    wait_for((tmp_path / "ready").exists)
    kept.send({"warn": [], "stop": [[1, 10_000, "stopped"]]})
    assert kept.wait_ended(1)["outcome"] == "stopped"
    assert signals(tmp_path) == ["SIGTERM"]


def test_the_grace_of_the_task_counts_and_not_the_one_of_the_order(kept, tmp_path) -> None:
    kept.spawn(1, f"trap 'touch {tmp_path}/term' TERM; touch ready; while :; do sleep 0.1; done",
               cwd=str(tmp_path), grace_ms=500)  # fmt: skip
    wait_for((tmp_path / "ready").exists)
    kept.send({"stop": [[1, LONG_MS, "stopped"]]})
    assert kept.wait_ended(1)["signal"] == 9
    assert (tmp_path / "term").exists()


def test_a_time_limit_holds_after_a_pause(kept) -> None:
    """The pause moves the limit, so its timer must move, too."""
    kept.spawn(1, "exec sleep 1000", timeout_ms=3_000)
    kept.wait_started(1)
    kept.send(word(lease_ms=100, action="freeze"))
    kept.wait_frozen(1)
    kept.send(word(lease_ms=LONG_MS, action="freeze"))
    kept.send({"thaw": [1]})
    assert kept.wait_ended(1)["outcome"] == "timeout"


def test_an_end_tells_cpu_time_and_memory_of_all_its_processes(kept, tmp_path) -> None:
    (tmp_path / "busy.py").write_text("x = b'x' * (80 << 20)\nn = 0\nfor _ in range(2_000_000): n += 1\n")
    kept.spawn(1, f"{sys.executable} busy.py; true", cwd=str(tmp_path))
    end = kept.wait_ended(1)
    assert end["cpu_ms"] > 0
    assert end["rss_mb"] >= 80, "the shell waited for a process that was larger than itself"
