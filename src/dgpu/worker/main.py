"""The life of a worker: listen, preload, run calls one at a time in the main thread, leave.

While a function runs for longer than a moment, a second thread takes over the socket: it answers the agent, sends
heartbeats and carries output. Short functions never pay for a change of threads.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Final

from dgpu.worker import entrypoints, registry
from dgpu.worker.context import current
from dgpu.worker.invoke import Invoker
from dgpu.worker.models import ModelCache
from dgpu.worker.output import CapturedOutput
from dgpu.worker.results import Files
from dgpu.worker.setup import Setup, SetupError, read_setup
from dgpu.worker.station import Station

_MOMENT_SECONDS: Final = 0.02
_QUIET_MOMENTS: Final = 50
# How long a worker that ends waits until its last results were taken.
_LAST_SECONDS: Final = 10.0
_BROKEN: Final = 70


class Worker:
    def __init__(self, path: str, setup: Setup) -> None:
        self._setup = setup
        self._output = CapturedOutput()
        self._station = Station(path, output=self._output, heartbeat_seconds=setup.heartbeat_ms / 1000)
        self._models = ModelCache(
            max_models=setup.max_models,
            ttl_seconds=setup.model_ttl_ms / 1000,
            on_change=self._station.send_models,
        )
        self._station.models = self._models.states
        self._invoker = Invoker(models=self._models, files=Files(pathlib.Path(path).parent))
        self._socket = threading.Lock()  # held by the thread that serves the socket
        self._busy_since: float | None = None
        self._watching = False
        self._active = threading.Event()

    def run(self) -> int:
        """The exit code."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        os.register_at_fork(after_in_child=self._after_fork)
        self._socket.acquire()
        threading.Thread(target=self._watch, name="dgpu-worker-socket", daemon=True).start()
        if not self._preload():
            return self._end(1)
        desk = self._station.desk
        while not desk.leaving and self._invoker.healthy:
            begun = desk.begin()
            if begun is None:
                self._wait()
                continue
            with self._busy():
                done = self._invoker.run(*begun)
                self._output.flush()
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self._station.take_output()
            desk.finish(done)
            self._station.flush()
        if not self._invoker.healthy:
            self._output.pass_on(
                2, b"dgpu: the GPU does not work in this process any more; another worker replaces it\n"
            )
            return self._end(_BROKEN)
        with self._busy():
            self._models.evict_all()
        return self._end(0)

    def _preload(self) -> bool:
        for entry in self._setup.preload:
            with self._busy():
                try:
                    preload(entry, self._models)
                except BaseException:  # noqa: BLE001 - code of the user
                    print(f"dgpu: preload of {entry!r} failed:", file=sys.stderr)  # noqa: T201
                    traceback.print_exc()
                    return False
                finally:
                    self._output.flush()
        self._station.send_ready()
        return True

    def _wait(self) -> None:
        """For a frame, or until a model has been unused for too long."""
        seconds = self._models.seconds_to_next_eviction()
        if seconds == 0.0:
            with self._busy():
                self._models.evict_unused()
            return
        self._station.turn(seconds)

    def _end(self, code: int) -> int:
        deadline = time.monotonic() + _LAST_SECONDS
        station = self._station
        while (station.unsent or station.desk.untaken) and time.monotonic() < deadline:
            station.turn(deadline - time.monotonic())
        self._output.release()
        return code

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Code of the user runs in this thread; the other one may serve the socket."""
        self._busy_since = time.monotonic()
        if not self._active.is_set():
            self._active.set()
        self._socket.release()
        try:
            yield
        finally:
            self._busy_since = None
            if self._watching:
                self._station.wake()
            self._socket.acquire()

    def _watch(self) -> None:
        quiet = 0
        while True:
            self._active.wait()
            time.sleep(_MOMENT_SECONDS)
            begun = self._busy_since
            if begun is None:
                quiet += 1
                if quiet >= _QUIET_MOMENTS:
                    self._active.clear()
                    if self._busy_since is not None:
                        self._active.set()
                continue
            quiet = 0
            if time.monotonic() - begun >= _MOMENT_SECONDS and self._socket.acquire(blocking=False):
                self._serve_while_busy()

    def _serve_while_busy(self) -> None:
        self._watching = True
        try:
            while self._busy_since is not None:
                self._station.turn(None)
        finally:
            self._watching = False
            self._socket.release()

    def _on_terminate(self, _signal: int, _frame: FrameType | None) -> None:
        self._station.leave_soon()

    def _after_fork(self) -> None:
        self._station.close_in_child()
        current.call = None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def preload(entry: str, models: ModelCache) -> None:
    """`module:loader`, `module`, or the name of a model that an earlier entry has declared."""
    if ":" in entry:
        declared = entrypoints.find(entry)
        if not isinstance(declared, registry.DeclaredModel):
            raise TypeError(
                f"{entry} is {type(declared).__name__}, expected a function decorated with @dgpu.model"
            )
        models.get(declared)
        return
    named = registry.declared(entry)
    if named is not None:
        models.get(named)
    else:
        entrypoints.import_module(entry)


def main() -> int:
    try:
        path, setup = read_setup()
    except SetupError as error:
        print(f"dgpu.worker: {error}", file=sys.stderr)  # noqa: T201
        return 2
    # Before the directory of the task, which `python -m` has put first.
    sys.path[:0] = [str(pathlib.Path(entry).absolute()) for entry in setup.python_path]
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(len(setup.python_path), here)
    return Worker(path, setup).run()
