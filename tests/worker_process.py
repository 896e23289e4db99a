"""A real worker process and the agent's end of its socket, for tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dgpu.worker import frames

FUNCTIONS = pathlib.Path(__file__).parent / "integration" / "worker" / "functions"
DEADLINE_SECONDS = 60.0
_leases = itertools.count(1_000)


class AgentEnd:
    """One connection to a worker."""

    def __init__(self, path: pathlib.Path) -> None:
        self.socket = _connected(path)
        self.seen: list[frames.ToAgent] = []
        self._decoder = frames.AgentDecoder()

    def send(self, *sent: frames.ToWorker) -> None:
        self.socket.sendall(b"".join(frames.encode(frame) for frame in sent))

    def call(self, entrypoint: str, *args: Any, lease: int, **fields: Any) -> None:
        body = msgspec.msgpack.encode([args, {}])
        self.send(frames.Call(lease=lease, task_id=lease, entrypoint=entrypoint, args=body, **fields))

    def until(self, found: Callable[[frames.ToAgent], bool]) -> frames.ToAgent:
        """The first frame that fits, among those seen and those to come."""
        looked = 0
        while True:
            for frame in self.seen[looked:]:
                if found(frame):
                    return frame
            looked = len(self.seen)
            data = self.socket.recv(1 << 20)
            assert data, f"the worker closed the connection; seen: {self.seen[-5:]}"
            self.seen += self._decoder.feed(data)

    def done(self, lease: int) -> frames.Done:
        frame = self.until(lambda frame: isinstance(frame, frames.Done) and frame.lease == lease)
        assert isinstance(frame, frames.Done)
        return frame

    def run(self, entrypoint: str, *args: Any, **fields: Any) -> frames.Done:
        lease = next(_leases)
        self.call(entrypoint, *args, lease=lease, **fields)
        done = self.done(lease)
        self.send(frames.Taken(leases=(lease,)))
        return done

    def value(self, entrypoint: str, *args: Any, **fields: Any) -> Any:
        done = self.run(entrypoint, *args, **fields)
        assert done.outcome == "returned", done
        return msgspec.msgpack.decode(done.result)

    def printed(self, lease: int, stream: int) -> bytes:
        return b"".join(
            frame.data
            for frame in self.seen
            if isinstance(frame, frames.Output) and (frame.lease, frame.stream) == (lease, stream)
        )

    def models(self) -> list[tuple[str, bool]]:
        """Of the newest report."""
        newest = next(
            frame for frame in reversed(self.seen) if isinstance(frame, frames.Models | frames.Hello)
        )
        return [(model.name, model.loading) for model in newest.models]

    def close(self) -> None:
        self.socket.close()


class WorkerProcess:
    def __init__(
        self, directory: pathlib.Path, *, env: Mapping[str, str] | None = None, **setup: Any
    ) -> None:
        self.path = directory / "w.sock"
        self.stdout = directory / "stdout"
        self.stderr = directory / "stderr"
        setup = {"python_path": [str(FUNCTIONS)], "heartbeat_ms": 60_000, **setup}
        environ = {**os.environ, **(env or {})}
        environ |= {"DGPU_WORKER_SOCKET": str(self.path), "DGPU_WORKER_SETUP": json.dumps(setup)}
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dgpu.worker"], stdout=out, stderr=err, env=environ, cwd=directory
            )

    def connect(self) -> AgentEnd:
        end = AgentEnd(self.path)
        end.until(lambda frame: isinstance(frame, frames.Hello))
        return end

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def worker_process(directory: pathlib.Path, **setup: Any) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(directory, **setup)
    try:
        yield worker
    finally:
        worker.stop()


def _connected(path: pathlib.Path) -> socket.socket:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.settimeout(DEADLINE_SECONDS)
        try:
            end.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            end.close()
            assert time.monotonic() < deadline, "the worker does not listen"
            time.sleep(0.01)
        else:
            return end
