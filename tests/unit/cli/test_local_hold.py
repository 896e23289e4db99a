"""`dgpu alloc` without a scheduler: the script of the task, and the local command, tied together."""

from __future__ import annotations

import subprocess

from dgpu.cli.local_hold import Hold, holding


def task_of(hold: Hold) -> subprocess.Popen[bytes]:
    env = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(hold.command, env=env, stderr=subprocess.PIPE)


def test_the_task_tells_its_gpus_and_ends_with_the_client(capfd) -> None:
    with holding() as hold:
        task = task_of(hold)
        assert hold.wait_for_gpus(lambda: False) == "GPU-a,GPU-b"
        assert hold.run(["sh", "-c", "echo $WORD; exit 7"], {"WORD": "given"}) == 7
        assert hold.run(["sh", "-c", "kill -9 $$"], {}) == 137
        assert hold.run(["/no/such/program"], {}) == 127
        assert task.poll() is None
    assert task.wait(60) == 0
    told = capfd.readouterr()
    assert told.out == "given\n"
    assert "/no/such/program: No such file or directory" in told.err


def test_the_command_is_stopped_with_its_children_when_the_task_ends() -> None:
    with holding() as hold:
        task = task_of(hold)
        hold.wait_for_gpus(lambda: False)
        script = f"sleep 1000 & kill -9 {task.pid}; wait"
        assert hold.run(["sh", "-c", script], {}) is None
        task.wait(60)


def test_a_task_that_cannot_start_ends_the_wait() -> None:
    with holding() as hold:
        assert hold.wait_for_gpus(lambda: True) is None


def test_a_task_on_another_machine_says_so() -> None:
    with holding() as hold:
        command = [*hold.command[:-1], "/no/such/directory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "not on this machine" in done.stderr) == (3, True)
