"""Runs one container for the keeper, from the pull of its image to its removal. Standard library only.

The keeper starts one such process per run, as it starts a task's own process: its output is the task's output. It
reports to the keeper in lines of JSON on a pipe: `root` [pid, start] and `group` of the container's first process when
it runs, and at last `end` [outcome, exit code, error] with `gone`, true if the engine has no such container any more.

The first SIGTERM asks the program to end; any later one kills it. Before the program runs, a SIGTERM ends the work.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

from dgpu.agent.containers.body import FILES_FD, SECRETS_TARGET, WORDS_FD, create_body
from dgpu.agent.containers.bridge import OwnTerminal, copy_input, copy_pieces, copy_raw, in_thread, write_all
from dgpu.agent.containers.engine import Engine, EngineDown, EngineError
from dgpu.agent.containers.files import FilesRefused, send_container_files
from dgpu.agent.containers.mounts import MountRefused, Pinned, is_unchanged, pin, pin_own
from dgpu.agent.containers.pulling import ImageError, ensure_image
from dgpu.agent.corral import group_of
from dgpu.agent.tree import read_proc

_ENGINE_FAILED = 125  # as `docker run` returns
_CANNOT_EXECUTE, _NO_COMMAND = 126, 127
_KILLED = 128 + signal.SIGKILL
_RETRY_SECONDS = 1.0
_LAST_OUTPUT_SECONDS = 10.0
_REMOVE_TRIES = 3
_SIGNAL_TRIES = 100
_SIGNAL_AGAIN_SECONDS = 0.1
_NO_SUCH_COMMAND = ("executable file not found", "command that was not found", "no such file or directory")
_NOT_EXECUTABLE = ("permission denied", "is a directory", "not a directory", "exec format error")


class End(NamedTuple):
    outcome: str  # of core.task.Outcome
    exit_code: int
    error: str


class _StoppedError(Exception):
    """SIGTERM arrived before the program ran."""


class Runner:
    def __init__(self, spec: dict[str, Any], engine: Engine) -> None:
        self._spec = spec
        self._name: str = spec["name"]
        self._engine = engine
        self._pinned: list[Pinned] = []
        self._may_exist = False
        self._may_run = False
        self._signals = 0
        self._output: threading.Thread | None = None
        self._terminal = OwnTerminal(1) if spec["terminal"] else None

    def run(self) -> End:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._terminal is not None:
            self._terminal.enter()
            signal.signal(
                signal.SIGINT, self._on_sigterm
            )  # Ctrl-C during a pull; later it goes to the program
        try:
            self._pin_mounts()
            if self._spec.get("files"):  # first: words about the pull belong to the output, too
                send_container_files(self._spec, FILES_FD)
            ensure_image(self._engine, self._spec, _note)
            container_id = self._create()
            self._start(container_id)
            return self._follow(container_id)
        except _StoppedError:
            return End("stopped", _ENGINE_FAILED, "stopped before its container ran")
        except (MountRefused, ImageError, FilesRefused) as error:
            return End("cannot_start", _ENGINE_FAILED, str(error))
        except EngineError as error:
            return _failure_of(error)

    def remove(self) -> bool:
        """Whether the engine has no such container any more."""
        if not self._may_exist:
            return True
        for _ in range(_REMOVE_TRIES):
            try:
                self._engine.remove(self._name)
            except EngineError:
                time.sleep(_RETRY_SECONDS)
            else:
                return True
        return False

    # -- before the program runs

    def _pin_mounts(self) -> None:
        spec = self._spec
        rules = {"allowed": spec["allowed"], "hidden": spec["hidden"]}
        if spec["own"]:
            self._pinned.append(pin_own(spec["dir"], spec["dir"]))
        else:
            self._pinned.append(pin(spec["dir"], spec["dir"], read_only=False, **rules))
        if spec["secrets_dir"]:
            self._pinned.append(pin_own(spec["secrets_dir"], SECRETS_TARGET, read_only=True))
        for source, target, read_only in spec["mounts"]:
            self._pinned.append(pin(source, target, read_only=read_only, **rules))

    def _create(self) -> str:
        body = create_body(self._spec, [(each.source, each.target, each.read_only) for each in self._pinned])
        self._may_exist = True
        return self._engine.create(self._name, body)

    def _start(self, container_id: str) -> None:
        self._attach(container_id)  # first: no output may be lost
        self._may_run = True
        self._engine.call("POST", f"/containers/{quote(container_id)}/start")
        if self._terminal is not None:
            self._terminal.follow(self._resize)
        state = self._engine.inspect(container_id)["State"]
        root = read_proc(state["Pid"]) if state.get("Pid") else None
        if root is None:
            return  # it has ended already
        group = group_of(root.pid)
        # A group that is not the container's own may hold other processes as well.
        known = str(group) if group is not None and container_id in str(group) else ""
        _tell(root=[root.pid, root.start_ticks], group=known)
        if changed := next((each for each in self._pinned if not is_unchanged(each, root.pid)), None):
            raise MountRefused(f"mount {changed.source} was changed while the container started")

    # -- while it runs

    def _follow(self, container_id: str) -> End:
        """Waits for the end. An engine that is restarted is asked again: its containers may have survived."""
        while True:
            try:
                self._engine.call("POST", f"/containers/{quote(container_id)}/wait", seconds=None)
                state = self._engine.inspect(container_id)["State"]
                if not state["Running"]:
                    break
            except EngineError as error:
                if error.status == http.client.NOT_FOUND:
                    return End("node_fault", _ENGINE_FAILED, "its container was removed while it ran")
                self._attach_again(container_id)
        if self._output is not None:
            self._output.join(_LAST_OUTPUT_SECONDS)
        return End("exited", int(state["ExitCode"]), self._cause(state))

    def _cause(self, state: dict[str, Any]) -> str:
        """A line for people, if there is more to say than the exit code."""
        limit = f"its memory limit is {self._spec['limits']['memory_mb']} MB"
        if state.get("OOMKilled"):
            return f"killed by the kernel, because it used too much memory: {limit}"
        # Some engines do not notice.
        if state["ExitCode"] == _KILLED and not self._signals and self._spec["limits"]["memory_mb"]:
            return f"killed, probably because it used too much memory: {limit}"
        return str(state.get("Error") or "")

    def _attach_again(self, container_id: str) -> None:
        """To an engine that did not answer."""
        time.sleep(_RETRY_SECONDS)
        if self._output is not None and self._output.is_alive():
            return
        with contextlib.suppress(EngineError):
            if self._engine.inspect(container_id)["State"]["Running"]:
                self._attach(container_id)
                _note("the container engine was restarted; output may be missing here")

    def _attach(self, container_id: str) -> None:
        path = f"/containers/{quote(container_id)}/attach"
        query = {"stream": "1", "stdout": "1", "stderr": "1"}
        if self._terminal is None:
            response = self._engine.stream("POST", path, seconds=None, query=query)
            self._output = in_thread(_copy_output, response)
            return
        link = self._engine.hijack(path, query=query | {"stdin": "1"})
        in_thread(copy_input, self._terminal.fd, link)
        self._output = in_thread(copy_raw, link, self._terminal.fd)

    def _resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(EngineError):  # it has ended
            path = f"/containers/{quote(self._name)}/resize"
            self._engine.call("POST", path, query={"h": str(rows), "w": str(columns)})

    def _on_sigterm(self, *_: object) -> None:
        self._signals += 1
        if not self._may_run:
            raise _StoppedError
        if self._signals <= 2:
            number = "SIGTERM" if self._signals == 1 else "SIGKILL"
            # A thread: the engine may hang, and the handler must not.
            threading.Thread(target=self._send, args=(number,), daemon=True).start()

    def _send(self, number: str) -> None:
        """Again, if the program does not run yet."""
        for _ in range(_SIGNAL_TRIES):
            with contextlib.suppress(EngineError):
                self._engine.signal(self._name, number)
                return
            time.sleep(_SIGNAL_AGAIN_SECONDS)


def main() -> NoReturn:
    """The main function of the process: its orders are on stdin."""
    with open(0, "rb", closefd=False) as file:
        spec = json.load(file)
    engine = Engine(spec["socket"])
    if spec["action"] == "remove":
        _remove_for_certain(engine, spec["name"])
    runner = Runner(spec, engine)
    try:
        end = runner.run()
    except BaseException as error:  # noqa: BLE001 - the last line of the process: say it, then end
        end = End(
            "node_fault", _ENGINE_FAILED, f"the container runner failed: {type(error).__name__}: {error}"
        )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _tell(end=end, gone=runner.remove())
    sys.stdout.flush()
    os._exit(end.exit_code)


def _remove_for_certain(engine: Engine, name: str) -> NoReturn:
    """For a run whose runner died: it has ended only when the engine says so."""
    keeper = os.getppid()
    while os.getppid() == keeper:  # when the keeper dies, its guard removes all of its containers
        with contextlib.suppress(EngineError):
            engine.remove(name)
            os._exit(0)
        time.sleep(_RETRY_SECONDS)
    os._exit(1)


def _failure_of(error: EngineError) -> End:
    if isinstance(error, EngineDown):
        return End("node_fault", _ENGINE_FAILED, str(error))
    text = str(error).lower()
    for words, code in ((_NO_SUCH_COMMAND, _NO_COMMAND), (_NOT_EXECUTABLE, _CANNOT_EXECUTE)):
        if any(word in text for word in words):
            return End("cannot_start", code, f"the container cannot start: {error}")
    if error.status in {http.client.BAD_REQUEST, http.client.NOT_FOUND}:
        return End("cannot_start", _ENGINE_FAILED, f"the container cannot start: {error}")
    return End("node_fault", _ENGINE_FAILED, f"the container engine failed: {error}")


def _copy_output(response: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException), response:
        copy_pieces(response.read1, 1, 2)


def _note(text: str) -> None:
    """A line in the task's output."""
    write_all(1, f"dgpu: {text}\n".encode())


def _tell(**words: Any) -> None:
    with contextlib.suppress(OSError):
        write_all(WORDS_FD, json.dumps(words).encode() + b"\n")
