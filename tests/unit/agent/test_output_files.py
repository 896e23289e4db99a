"""Files with copies of output: patterns in their names, and files that are slow."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import termios
import threading
import time

import msgspec
import pytest

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.frames import FILES_PROTOCOL, PROTOCOL
from dgpu.agent.marks import STDERR, STDOUT
from dgpu.agent.output_files import MAX_WAITING_BYTES, Copies
from dgpu.agent.pipes import Pipes
from dgpu.agent.run.containers import NotHereError
from dgpu.agent.run.output_files import files_order
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import TaskDetail
from dgpu.wire.fields import Unacceptable
from dgpu.wire.file_patterns import file_pattern
from dgpu.wire.ranks import run_number

PATIENCE_SECONDS = 30
IN_ARRAY = {"DGPU_ARRAY_ID": "task-42", "DGPU_ARRAY_INDEX": "3"}


def wanted(detail, *, attempt=1, protocol=PROTOCOL, **facts):
    order = RunOrder(lease_id=LeaseId(1), task_id=TaskId(46), attempt=attempt, **facts)
    return files_order(order, msgspec.convert(detail, TaskDetail), NodeId("n1"), protocol)


def test_patterns_name_the_run() -> None:
    pattern = "logs/%x-%j-%A_%a-%N-100%%.txt"
    assert file_pattern(pattern) == pattern
    detail = {"name": "a/b", "output_file": pattern, "error_file": "%%j"}
    assert wanted(detail, env=IN_ARRAY) == {
        "output": "logs/a_b-46-42_3-n1-100%.txt",
        "errors": "%j",
        "anew": True,
    }
    assert wanted({"error_file": "%x-%A_%a"}) == {"errors": "task-46-46_0", "anew": True}
    assert wanted({}) is None


def test_a_later_attempt_continues_and_only_the_first_node_writes_a_common_file() -> None:
    assert wanted({"output_file": "x"}, attempt=2) == {"output": "x", "anew": False}
    second = run_number(1, rank=1)
    assert wanted({"output_file": "x%%N"}, attempt=second) is None
    both = {"output_file": "x%N", "error_file": "y"}
    assert wanted(both, attempt=second) == {"output": "xn1", "anew": True}


def test_an_older_keeper_gets_no_such_task() -> None:
    with pytest.raises(NotHereError, match="writes no output files"):
        wanted({"output_file": "x"}, protocol=FILES_PROTOCOL - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "the path of a file"),
        (7, "the path of a file"),
        ("a\0b", "the path of a file"),
        ("x" * 5_000, "at most 4096 characters"),
        ("logs/", "not of a directory"),
        ("..", "not of a directory"),
        ("%u.log", "without %u"),
        ("log%", "without %;"),
    ],
)
def test_bad_names_are_refused(value, expected) -> None:
    with pytest.raises(Unacceptable) as refused:
        file_pattern(value)
    assert expected in refused.value.expected


def unread_in(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_file_that_does_not_take_more_is_full_until_it_does() -> None:
    """A pipe that is not read acts like a dead file system."""
    here, there = socket.socketpair()
    read_end, write_end = os.pipe()
    socket.send_fds(there, [b"0-"], [write_end])
    os.close(write_end)
    freed = threading.Event()
    copies = Copies(here.detach(), freed.set)
    sent = b""

    def append() -> None:
        nonlocal sent
        copies.append(piece := b"%08d" % len(sent) * 8_192, STDOUT)
        copies.append(b"of the other stream", STDERR)
        sent += piece

    append()
    append()
    while unread_in(read_end) < 65_536:  # then its thread waits, and takes no more of what follows
        time.sleep(0.001)
    while not copies.is_full:
        append()
    assert not freed.is_set()
    received = b""
    while len(received) < len(sent):
        received += os.read(read_end, 65_536)
    assert received == sent
    assert len(sent) >= MAX_WAITING_BYTES
    assert freed.wait(PATIENCE_SECONDS)
    assert not copies.is_full
    assert copies.note() == b""
    copies.close()
    assert os.read(read_end, 1) == b""  # closed
    os.close(read_end)
    there.close()


def test_a_task_waits_for_a_slow_file_and_others_do_not(tmp_path) -> None:
    epoll = select.epoll()
    pipes = Pipes(epoll)
    here, there = socket.socketpair()
    file_read, file_write = os.pipe()
    socket.send_fds(there, [b"00"], [file_write])
    ends = {}
    pipes.open_files(1, here.detach())
    for lease in (1, 2):
        read_end, ends[lease] = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(ends[lease], False)
        pipes.open(lease, read_end, ChunkWriter(tmp_path / str(lease)))

    def serve() -> None:
        for descriptor, _ in epoll.poll(0.001):
            pipes.serve(descriptor)

    sent = 0
    with pytest.raises(BlockingIOError):  # its pipe is full and stays so
        while sent < 64 * MAX_WAITING_BYTES:
            sent += os.write(ends[1], b"x" * 4_096)
            pipes.serve(next((fd for fd, _ in epoll.poll(0)), -1))
    os.write(ends[2], b"other")
    while not (tmp_path / "2" / f"{0:016d}").exists():
        serve()
    os.set_blocking(file_read, False)
    received = 0
    while received < sent:  # now the file follows, and its pipe is read again
        serve()
        with contextlib.suppress(BlockingIOError):
            received += len(os.read(file_read, 1 << 20))
    assert received == sent
    pipes.close(2)
    assert pipes.close(1) == {"output_bytes": sent}


def test_without_files_nothing_is_copied() -> None:
    here, there = socket.socketpair()
    copies = Copies(here.detach(), lambda: None)
    there.close()  # the child did not start
    copies.append(b"x", STDOUT)
    copies.close()
    assert copies.note() == b""
