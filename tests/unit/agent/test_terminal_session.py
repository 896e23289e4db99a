"""Terminals without a process: what is kept for a client that attaches, and bounds."""

from __future__ import annotations

import os
import socket

from dgpu.agent.terminal_frames import DATA, FrameDecoder
from dgpu.agent.terminal_session import MAX_UNSENT_BYTES, Client, Replay, Session


def test_a_replay_is_bounded_and_begins_with_a_whole_line() -> None:
    replay = Replay(max_bytes=17)
    replay.add(b"first\n")
    assert replay.text() == b"first\n"
    replay.add(b"second line\nthird\n")
    assert replay.text() == b"third\n"


def _session() -> tuple[Session, int, int]:
    """With the program's end of the terminal, here a pipe each way, and the end of the log."""
    ours, theirs = socket.socketpair()
    log_read, log_write = os.pipe()
    opened = {"id": 1, "task": True, "terminal": True, "fds": 2}
    session = Session(opened, [ours.detach(), log_write], lambda _: None)
    return session, theirs.detach(), log_read


def test_a_client_that_does_not_read_stops_its_program_and_no_more() -> None:
    session, program, log = _session()
    client = Client(socket.socketpair()[0])
    session.client = client
    os.set_blocking(program, False)
    os.set_blocking(log, False)
    written = 0
    for _ in range(1_000):
        try:
            written += os.write(program, b"x" * 10_000)
        except BlockingIOError:
            break
        for fd in session.wanted():
            session.serve(fd)
        while True:
            try:
                os.read(log, 65_536)
            except BlockingIOError:
                break
    else:
        raise AssertionError("the program was never stopped")
    assert len(client.unsent) < MAX_UNSENT_BYTES + 65_536
    frames = FrameDecoder().feed(bytes(client.unsent))
    assert {kind for kind, _ in frames} == {DATA}
    session.close()


def test_output_waits_for_the_log() -> None:
    """Nothing that a task wrote may be missing in its output because the disk was slow."""
    session, program, log = _session()
    os.set_blocking(program, False)
    while session.sources and not session.unlogged:
        os.write(program, b"y" * 4_096)
        for fd in session.wanted():
            session.serve(fd)
    assert session.wanted() == {session.log_fd: 4}, "only for room in the log"
    waiting = len(session.unlogged)
    os.read(log, 1 << 20)
    session.serve(session.log_fd)
    assert len(session.unlogged) < waiting
    session.close()
