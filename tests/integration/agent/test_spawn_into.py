"""Processes that are created in their control group."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences
from dgpu.agent.native import find_native
from dgpu.agent.spawn_into import SpawnInto

_FACTS = ["/proc/self/cgroup", "/proc/self/status", "/proc/self/environ"]


@pytest.fixture
def corral():
    if not find_native("spawn_into.c"):
        pytest.skip("spawn_into.c is not compiled")
    found = Corral(f"into-{os.getpid()}")
    if not found.usable:
        pytest.skip("this machine has no control groups for tasks")
    yield found
    found.close()


@pytest.fixture
def group(corral):
    directory = os.open(corral.make(1), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    yield directory
    os.close(directory)


def spawn(
    group: int, argv: list[str], env: dict[str, str], *, program: str = "/bin/sh"
) -> tuple[int | None, str]:
    """The pid, and the output of the ended process."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = SpawnInto().spawn(group, program, argv, env, (null, write_end, status_write))
        os.close(write_end)
        with os.fdopen(read_end) as output:
            return pid, output.read()
    finally:
        if pid:
            assert os.waitpid(pid, 0) == (pid, 0)
        for fd in (null, status_read, status_write):
            os.close(fd)


def test_a_process_starts_in_its_group_with_nothing_of_its_parent(group, corral) -> None:
    ignored = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP]
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        pid, told = spawn(group, ["cat", *_FACTS], {"WORD": "a=ü", "OTHER": ""}, program="/bin/cat")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    lines = told.splitlines()
    assert any(line.startswith("0::") and line.endswith(f"{Path(corral.path).name}/1") for line in lines)
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert facts["NSsid"] == str(pid)
    assert int(facts["SigBlk"], 16) == 0
    assert not int(facts["SigIgn"], 16) & sum(1 << number - 1 for number in ignored)
    assert lines[-1] == "WORD=a=ü\0OTHER=\0"
    _, told = spawn(group, ["ls", "/proc/self/fd"], {}, program="/bin/ls")
    open_fds = set(map(int, told.split()))
    assert {0, 1, 2} < open_fds
    assert group not in open_fds


def test_a_program_that_does_not_start_leaves_no_process(group) -> None:
    before = children()
    assert spawn(group, ["x"], {}, program="/no/such")[0] is None
    assert children() == before


def children() -> set[str]:
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for each in lists for pid in each.read_text().split()}


def test_a_directory_that_is_no_group_starts_nothing(group, tmp_path) -> None:
    """The caller then starts the program without a group, as on a kernel that cannot do it."""
    other = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert spawn(other, ["sh", "-c", "echo here"], {}) == (None, "")
    finally:
        os.close(other)


@pytest.mark.parametrize(
    ("argv", "env"), [(["a\0b"], {}), (["a"], {"N": "a\0b"}), (["a"], {"a=b": ""}), (["a"], {"": "x"})]
)
def test_words_that_would_become_other_words_are_refused(group, argv, env) -> None:
    with pytest.raises(ValueError, match=r"null byte|variable name"):
        SpawnInto().spawn(group, "/bin/sh", argv, env, (0, 1, 2))


@pytest.mark.parametrize("ram_mb", [0, 64])
def test_a_group_with_a_limit_of_memory_is_entered_later(tmp_path, ram_mb) -> None:
    """Before its program starts, the process shares the memory of the keeper: the system would kill both."""
    corral = Corral("later")
    corral.close()
    corral._root, corral.controllers = (
        tmp_path,
        frozenset({"memory"}),
    )  # no such group can be made on every machine
    fences = Fences(corral, "later")
    fences._v1, fences._filters_devices = {}, False
    with fences.made({"lease": 1, "ram_mb": ram_mb, "account": (70_000, 70_000, (), 0)}) as groups:
        assert (groups.into >= 0) == (not ram_mb)
        assert groups.entries == [f"{tmp_path}/1/cgroup.procs"]
