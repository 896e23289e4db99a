"""Terminals of tasks and commands inside runs: a real keeper, real pseudo-terminals, the agent's end of the socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.agent.terminal_frames import (
    DATA,
    END,
    OPENED,
)
from integration.agent.keeping import Kept, children_of, is_alive, pid_in, wait_for
from integration.agent.terminal_lines import Line, run_in


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    kept = Kept(tmp_path_factory.mktemp("terminals"))
    yield kept
    kept.close()


@pytest.fixture
def lease() -> int:
    global _last_lease  # noqa: PLW0603 - leases are never reused
    _last_lease += 1
    return _last_lease


_last_lease = 0


def test_a_terminal_takes_input_resizes_and_reports_the_exit_code(kept: Kept, lease: int) -> None:
    kept.spawn(
        lease, "tty; read word; echo got $word; stty size; read again; stty size; exit 7", terminal=True
    )
    kept.wait_started(lease)
    line = Line(kept, lease, size=[40, 120])
    line.wait_text(b"/dev/pts/")
    line.send(DATA, b"hello\n")
    line.wait_text(b"40 120")
    line.resize(50, 99)
    line.send(DATA, b"\n")
    line.wait_text(b"50 99")
    assert line.wait_closed() == {"reason": "ended", "detail": "", "exit_code": 7}
    assert kept.wait_ended(lease)["exit_code"] == 7
    assert b"got hello" in kept.output(lease)
    assert kept.output(lease).endswith(b"50 99\r\n"), "the last words must be in the output, too"


def test_control_c_interrupts_the_program_and_not_the_shell(kept: Kept, lease: int) -> None:
    kept.spawn(lease, ["/bin/bash", "--norc", "-i"], terminal=True, env={"PS1": "ready> "})
    kept.wait_started(lease)
    line = Line(kept, lease, size=[24, 80])
    line.wait_text(b"ready> ")
    line.send(DATA, b"sleep 1000\n")
    line.wait_text(b"sleep 1000\r\n")
    wait_for(lambda: any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in kept.processes(lease)))
    line.send(DATA, b"\x03")
    line.send(DATA, b"echo code $?; jobs -x true; exit 4\n")
    line.wait_text(b"code 130")
    assert line.wait_closed()["exit_code"] == 4
    kept.wait_ended(lease)


def test_a_client_that_leaves_can_attach_again_and_a_new_one_replaces_the_last(
    kept: Kept, lease: int
) -> None:
    kept.spawn(
        lease,
        "echo early; while read word; do echo <$word>; done".replace("<", "[").replace(">", "]"),
        terminal=True,
    )
    kept.wait_started(lease)
    first = Line(kept, lease, size=[24, 80])
    first.wait_text(b"early")
    first.leave()
    second = Line(kept, lease, size=[24, 80])
    second.wait_text(b"early")
    second.send(DATA, b"two\n")
    second.wait_text(b"[two]")
    third = Line(kept, lease, size=[24, 80])
    assert second.wait_closed()["reason"] == "replaced"
    third.wait_text(b"[two]")
    third.send(DATA, b"\x04")
    assert third.wait_closed()["exit_code"] == 0
    kept.wait_ended(lease)


def test_output_without_a_client_does_not_stop_the_program(kept: Kept, lease: int) -> None:
    kept.spawn(lease, "head -c 3000000 /dev/zero | tr '\\0' x; echo done", terminal=True)
    assert kept.wait_ended(lease)["exit_code"] == 0
    assert len(kept.output(lease)) == 3_000_000 + len(b"done\r\n")


def test_a_command_has_the_environment_of_its_run(kept: Kept, lease: int) -> None:
    kept.spawn(lease, "sleep 1000", env={"CUDA_VISIBLE_DEVICES": "GPU-a", "OWN": "yes"})
    kept.wait_started(lease)
    line = run_in(kept, lease, "pwd; echo $CUDA_VISIBLE_DEVICES $OWN; echo oops >&2; cat; exit 3")
    line.send(DATA, b"input")
    line.send(END)
    assert line.wait_closed() == {"reason": "ended", "detail": "", "exit_code": 3}
    assert line.frames[0][0] == OPENED
    assert line.text == f"{kept.settings.work_dir}/{lease}\nGPU-a yes\ninput".encode()
    assert line.errors == b"oops\n"
    assert kept.output(lease) == b"", "a command does not write into the task's output"
    kept.send({"stop": [[lease, 0, "stopped"]]})
    kept.wait_ended(lease)


def test_a_command_ends_with_its_run(kept: Kept, lease: int, tmp_path: Path) -> None:
    """Also one that left its session, its terminal and its environment: nothing may use the GPUs after the lease."""
    kept.spawn(lease, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", grace_ms=3_600_000)
    kept.wait_started(lease)
    shell = Line(kept, lease, argv=["/bin/bash", "--norc", "-i"], env={"PS1": "ready> "}, size=[24, 80])
    shell.wait_text(b"ready> ")
    line = run_in(kept, lease, f"env -i sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000", size=[24, 80])
    pid = pid_in(tmp_path / "pid")
    (tmp_path / "go").touch()
    assert kept.wait_ended(lease)["exit_code"] == 0
    assert not is_alive(pid)
    assert line.wait_closed()["reason"] == "ended"
    assert shell.wait_closed()["reason"] == "ended", (
        "it ignores SIGTERM, and must not use up the grace of the task"
    )


def test_a_command_ends_with_its_client(kept: Kept, lease: int, tmp_path: Path) -> None:
    kept.spawn(lease, "sleep 1000")
    kept.wait_started(lease)
    trap = f"trap 'touch {tmp_path}/hung_up; exit' HUP"
    line = run_in(kept, lease, f"{trap}; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done")
    pid = pid_in(tmp_path / "pid")
    line.leave()
    wait_for(lambda: not is_alive(pid))
    assert (tmp_path / "hung_up").exists()
    assert lease not in kept.ended, "the run itself continues"
    kept.send({"stop": [[lease, 0, "stopped"]]})
    kept.wait_ended(lease)


def test_commands_that_cannot_run_are_refused_with_a_reason(kept: Kept, lease: int) -> None:
    assert run_in(kept, lease, "true").wait_closed()["reason"] == "run_ended"
    assert Line(kept, lease, size=[24, 80]).wait_closed()["reason"] == "no_terminal"
    kept.spawn(lease, "sleep 1000")
    kept.wait_started(lease)
    assert run_in(kept, lease, "true", node="other").wait_closed()["reason"] == "run_ended"
    assert Line(kept, lease, size=[24, 80]).wait_closed()["reason"] == "no_terminal"
    missing = Line(kept, lease, argv=["no-such-program"], env={}).wait_closed()
    assert (missing["reason"], missing["detail"]) == ("cannot_start", "no-such-program: command not found")
    kept.send({"stop": [[lease, 0, "stopped"]]})
    kept.wait_ended(lease)


def test_a_run_ends_only_when_its_last_words_are_in_its_output(
    kept: Kept, lease: int, tmp_path: Path
) -> None:
    kept.spawn(lease, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo last words", terminal=True)
    kept.wait_started(lease)
    _, terminals = sorted(set(children_of(kept.guard_pid)) - {kept.pid})
    os.kill(terminals, signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        wait_for(lambda: not kept.processes(lease))
        kept.send({"ping": 1})
        kept.wait_pong()
        assert lease not in kept.ended
    finally:
        os.kill(terminals, signal.SIGCONT)
    assert kept.wait_ended(lease)["exit_code"] == 0
    assert kept.output(lease) == b"last words\r\n"


def test_other_tasks_survive_the_death_of_the_process_for_terminals(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    try:
        kept.spawn(1, "sleep 1000")
        kept.spawn(2, "sleep 1000", terminal=True)
        kept.wait_started(1)
        kept.wait_started(2)
        _, terminals = sorted(set(children_of(kept.guard_pid)) - {kept.pid})
        os.kill(terminals, signal.SIGKILL)
        assert kept.wait_ended(2)["signal"] == signal.SIGHUP
        kept.spawn(3, "true", terminal=True)
        assert "terminal" in kept.wait_ended(3)["error"]
        assert 1 not in kept.ended
    finally:
        kept.close()
