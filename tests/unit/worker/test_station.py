"""The worker's end of the socket, with two threads as in a worker that runs a long function."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from dgpu.worker import frames
from dgpu.worker.station import Station

FRAMES = 20_000


class _OwnOutput:
    """Descriptors 1 and 2 of the test itself stay as they are."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.readers = {self.reader: 1}

    def read(self, reader: int) -> bytes:
        return os.read(reader, 1 << 20)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)

    def pass_on(self, _stream: int, data: bytes) -> None:
        raise AssertionError(data)


@pytest.fixture
def output() -> Iterator[_OwnOutput]:
    made = _OwnOutput()
    yield made
    made.close()


@pytest.fixture
def station(tmp_path: pathlib.Path, output: _OwnOutput) -> Station:
    return Station(str(tmp_path / "s"), output=output, heartbeat_seconds=60.0)


@contextlib.contextmanager
def connected(tmp_path: pathlib.Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(str(tmp_path / "s"))
        yield agent


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_a_function_may_send_while_the_other_thread_serves_the_socket(
    station: Station, tmp_path: pathlib.Path
) -> None:
    with connected(tmp_path) as agent:
        station.turn(1.0)
        frame = frames.Progress(lease=1, permille=1)
        senders = [
            threading.Thread(target=lambda: [station.send(frame) for _ in range(FRAMES)]) for _ in "ab"
        ]
        for each in senders:
            each.start()
        while any(each.is_alive() for each in senders):
            station.flush()  # the agent does not read: most frames wait
        decoder, sent = frames.AgentDecoder(), []
        while len(sent) < 2 * FRAMES + 2:  # after a hello and the models
            station.flush()
            sent += decoder.feed(agent.recv(1 << 18))
    assert isinstance(sent[0], frames.Hello)


def test_the_first_frame_of_a_connection_is_a_hello_also_if_a_function_sends_just_then(
    station: Station, tmp_path: pathlib.Path
) -> None:
    """An agent ends a worker whose first frame is another one."""
    sending = threading.Thread(target=lambda: station.send(frames.Progress(lease=1, permille=1)))

    def models() -> tuple[frames.ModelState, ...]:
        """Asked for while the hello is made."""
        if sending.ident is None:
            sending.start()
            sending.join(0.2)
        return ()

    station.models = models
    with connected(tmp_path) as agent:
        station.turn(1.0)
        sending.join()
        station.flush()
        sent = frames.AgentDecoder().feed(agent.recv(1 << 18))
    first, *others = [type(each).__name__ for each in sent]
    assert (first, sorted(others)) == ("Hello", ["Models", "Progress"]), "the others come in any order"


def test_a_signal_only_asks_and_the_next_turn_leaves(station: Station) -> None:
    """The handler interrupts any line of the thread that changes the queue of calls."""
    station.desk.receive(frames.Call(lease=1, entrypoint="a:b"))
    station.leave_soon()
    assert (station.desk.leaving, station.desk.waiting) == (False, 1)
    station.turn(None)
    assert (station.desk.leaving, station.desk.waiting) == (True, 0)


def test_the_last_output_of_a_call_is_taken_although_the_agent_was_slow_until_just_then(
    station: Station, output: _OwnOutput, tmp_path: pathlib.Path
) -> None:
    """The pipes are not read while the agent is behind. That may change at the end of a turn, after the pipes."""
    with connected(tmp_path) as agent:
        agent.setblocking(False)
        station.turn(1.0)
        station.desk.receive(frames.Call(lease=1, entrypoint="a:b"))
        station.desk.begin()
        decoder, seen = frames.AgentDecoder(), []

        def read_all() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    seen.extend(decoder.feed(agent.recv(1 << 18)))

        while station._reads_output:
            station.send(frames.Output(lease=1, stream=1, data=b"x" * 4_096))
            station.flush()
            station._follow_output()
        os.write(output.writer, b"the last words")
        station.desk.tick = read_all  # after the pipes, before the frames of the same turn
        station.take_output()
        for _ in range(10):
            station.flush()
            read_all()
    printed = [each.data for each in seen if isinstance(each, frames.Output)]
    assert printed[-1] == b"the last words"
