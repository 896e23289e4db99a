"""Terminals of tasks, driven through pseudo-terminals as a person types: run -it, attach, exec; and alloc."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal

import pytest

from e2e.conftest import PATIENCE_SECONDS, Site, eventually
from e2e.typist import typing

pytestmark = pytest.mark.slow

DETACH = b"\x10\x11"
BASH = ("run", "-it", "-e", "PS1=ready> ", "--", "bash", "--norc", "-i")


@pytest.fixture(scope="module")
def place():
    place = Site()
    place.env |= {"TERM": "xterm"}
    place.up("--fake", "4xV100")
    yield place
    place.close()


def newest(place):
    return max(place.json("ps", "-a")["tasks"], key=lambda task: int(task["task_id"][5:]))["task_id"]


def test_a_shell_has_a_terminal_that_resizes_and_its_exit_code_comes_back(place):
    with typing(place, *BASH, size=(33, 101)) as typist:
        typist.sees(rb"ready> ")
        typist.type(b"stty size; tty\n")
        typist.sees(rb"33 101\r\n/dev/pts/\d+")
        typist.resize(41, 77)
        eventually(lambda: _size(typist) == b"41 77", "the new size")
        typist.type(b"sleep 1000\n")
        typist.sees(rb"sleep 1000\r\n")
        eventually(lambda: "sleep" in _running(place), "sleep to run")
        typist.type(b"\x03")
        typist.type(b"echo code $?\n")
        typist.sees(rb"code 130")
        typist.type(b"sleep 500\n")
        eventually(lambda: "sleep" in _running(place), "sleep to run again")
        typist.type(b"\x1a")
        typist.sees(rb"Stopped")
        typist.type(b"exit 42\n")
        typist.sees(rb"There are stopped jobs")
        typist.type(b"exit 42\n")
        assert typist.ends() == 42
    output = place.good("logs", newest(place)).out
    assert "33 101" in output
    assert "code 130" in output


def _size(typist):
    typist.type(b"echo size: $(stty size).\n")
    return typist.sees(rb"size: (\d+ \d+)\.")[1]


def _running(place):
    """Names of the programs in the directory of this site."""
    names = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == place.home:
                names.add((process / "comm").read_text().strip())
    return names


def test_a_task_with_a_terminal_outlives_its_client_the_scheduler_and_the_agent(place):
    with typing(place, *BASH) as typist:
        typist.sees(rb"ready> ")
        typist.type(b"kept=yes\n")
        typist.sees(rb"ready> ")
        name = newest(place)
        _kill(place, "scheduler")
        typist.sees(rb"attach " + name.encode())
        assert typist.ends() == 125
    eventually(lambda: place.dgpu("show", name).code == 0, "the scheduler to be back")
    _kill(place, "agent")
    with typing(place, "attach", name) as typist:
        typist.sees(rb"kept=yes")
        typist.type(b"echo kept: $kept\n")
        typist.sees(rb"kept: yes")
        typist.type(DETACH)
        typist.sees(
            rb"detached; " + name.encode() + rb" continues. Attach again: dgpu attach " + name.encode()
        )
        assert typist.ends() == 0
    with typing(place, "attach", name) as first:
        first.sees(rb"ready> ")
        with typing(place, "attach", name) as second:
            first.sees(rb"another client has attached")
            assert first.ends() == 125
            second.type(b"exit 9\n")
            assert second.ends() == 9


def _kill(place, role):
    pid = place.record[role]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: place.record.get(role, {}).get("pid", pid) != pid, f"another {role}")


def test_vim_opens_and_resizes(place):
    vim = shutil.which("vim") or shutil.which("vim.tiny")
    if vim is None:
        pytest.skip("vim is not installed")
    file = place.home / "file.txt"
    with typing(place, "run", "-it", "--", vim, "-u", "NONE", "-N", str(file), size=(20, 60)) as typist:
        typist.sees(rb"file.txt")
        typist.resize(30, 90)
        eventually(lambda: _size_of_vim(typist, place.home / "size.txt") == "30x90", "the new size")
        typist.type(b"ihello from vim\x1b")
        typist.sees(rb"hello from vim")
        typist.type(b":wq\r")
        assert typist.ends() == 0
    assert file.read_text() == "hello from vim\n"


def _size_of_vim(typist, file):
    typist.type(b":call writefile([&lines . 'x' . &columns], 'size.txt')\r")
    return file.read_text().strip() if file.exists() else ""


def test_a_command_runs_inside_a_task_and_returns_its_code(place):
    name = place.submit("-G", "2", "-e", "OWN=word", "--", "sleep", "1000")
    place.started(name)
    gpus = place.task(name)["allocated_gpus"]
    done = place.dgpu("exec", name, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $OWN; echo no >&2; exit 3")
    assert (done.code, done.out, done.err) == (3, f"{','.join(gpus)} word\n", "no\n"), done
    missing = place.dgpu("exec", name, "no-such-program")
    assert missing.code == 127, missing
    assert "no-such-program: command not found" in missing.err
    with typing(place, "exec", "-it", name, "--", "sh", "-c", "tty; read x; exit $x") as typist:
        typist.sees(rb"/dev/pts/")
        typist.type(b"12\n")
        assert typist.ends() == 12
    plain = place.dgpu("attach", name)
    assert plain.code == 2, plain
    assert "not a terminal" in plain.err
    with typing(place, "attach", name) as typist:
        typist.sees(rb"was not started with a terminal.*dgpu exec -it " + name.encode())
        assert typist.ends() != 0
    place.good("cancel", name)
    eventually(lambda: place.task(name)["status"] == "cancelled", "the end of the task")
    ended = place.dgpu("exec", name, "--", "true")
    assert ended.code == 6, ended
    assert f"{name} has ended (cancelled)" in ended.err


def test_a_local_command_holds_gpus_until_it_ends_or_its_client_is_killed(place):
    done = place.dgpu("alloc", "-G", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 4")
    name = newest(place)
    assert (done.code, done.out) == (4, ",".join(place.task(name)["allocated_gpus"]) + "\n"), done
    eventually(lambda: place.task(name)["status"] == "success", "the end of the hold")
    wrong = place.dgpu("alloc", "--nodes", "2", "--", "true")
    assert (wrong.code, "leave out --nodes" in wrong.err) == (2, True), wrong

    client = place.start("alloc", "-G", "4", "--", "sh", "-c", "echo $$; exec sleep 1000")
    command = int(client.stdout.readline())
    client.kill()
    client.communicate()
    name = newest(place)
    eventually(lambda: place.task(name)["status"] == "success", "the end of the hold")
    eventually(lambda: not _lives(command), "the end of the command")

    client = place.start("alloc", "--", "sh", "-c", "sleep 1000 & echo $!; wait")
    command = int(client.stdout.readline())
    place.good("cancel", newest(place))
    _, said = client.communicate(timeout=PATIENCE_SECONDS)
    assert client.returncode == 130, said
    assert "the command was stopped" in said
    assert not _lives(command)


def _lives(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}
