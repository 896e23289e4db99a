"""Runs one command inside a running container for the keeper. Standard library only.

The keeper starts this process as it starts any command inside a run, with pipes or a terminal. The engine starts the
command; this process moves the bytes and ends with the command's exit code. SIGHUP means that the client has gone:
the command gets SIGHUP, and SIGKILL if it stays. The keeper would kill only this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, NoReturn
from urllib.parse import quote

from dgpu.agent.containers.body import SPEC_VARIABLE
from dgpu.agent.containers.bridge import OwnTerminal, copy_input, copy_pieces, copy_raw, in_thread
from dgpu.agent.containers.engine import Engine, EngineError
from dgpu.agent.tree import pid_namespace, read_proc

_FAILED, _CANNOT_EXECUTE, _NO_COMMAND = 125, 126, 127
_HANG_UP_SECONDS = 2.0  # below the time after which the keeper kills this process
_LOOK_SECONDS = 0.05
_NO_SUCH_COMMAND = ("not found", "no such file")


class Inside:
    def __init__(self, spec: dict[str, Any], engine: Engine) -> None:
        self._spec = spec
        self._engine = engine
        self._id = ""

    def run(self) -> int:
        """The exit code. Raises EngineError."""
        has_terminal: bool = self._spec["terminal"]
        terminal = OwnTerminal(0)
        if has_terminal:
            terminal.enter()
        self._id = self._create()
        signal.signal(signal.SIGHUP, lambda *_: in_thread(self._hang_up))
        body = {"Detach": False, "Tty": has_terminal}
        link = self._engine.hijack(f"/exec/{quote(self._id)}/start", body=body)
        if has_terminal:
            terminal.follow(self._resize)
        in_thread(copy_input, 0, link)
        if has_terminal:
            copy_raw(link, 1)
        else:
            with contextlib.suppress(OSError):
                copy_pieces(link.recv, 1, 2)
        return self._exit_code()

    def _create(self) -> str:
        body = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": self._spec["terminal"],
            "Cmd": self._spec["argv"],
            "Env": [f"{name}={value}" for name, value in self._spec["env"].items()],
            "Privileged": False,
        }
        return str(
            self._engine.call("POST", f"/containers/{quote(self._spec['name'])}/exec", body=body)["Id"]
        )

    def _resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(EngineError):  # it has ended, or not begun
            self._engine.call(
                "POST", f"/exec/{quote(self._id)}/resize", query={"h": str(rows), "w": str(columns)}
            )

    def _exit_code(self) -> int:
        """The engine closes the streams a moment before it knows the code."""
        while True:
            found = self._engine.call("GET", f"/exec/{quote(self._id)}/json")
            if not found["Running"]:
                return int(found["ExitCode"] or 0)
            time.sleep(_LOOK_SECONDS)

    def _hang_up(self) -> None:
        for number in (signal.SIGHUP, signal.SIGKILL):
            with contextlib.suppress(EngineError, OSError, KeyError):
                pid = int(self._engine.call("GET", f"/exec/{quote(self._id)}/json")["Pid"])
                if pid and self._is_inside(pid):
                    os.kill(pid, number)
            time.sleep(_HANG_UP_SECONDS)
        os._exit(128 + signal.SIGHUP)

    def _is_inside(self, pid: int) -> bool:
        """The number of an ended process may belong to another one by now."""
        root = int(self._engine.inspect(self._spec["name"])["State"]["Pid"])
        return read_proc(pid) is not None and pid_namespace(pid) == pid_namespace(root)


def main() -> NoReturn:
    spec = json.loads(os.environ.pop(SPEC_VARIABLE))
    try:
        code = Inside(spec, Engine(spec["socket"])).run()
    except EngineError as error:
        text = str(error).lower()
        missing = any(words in text for words in _NO_SUCH_COMMAND)
        code = _NO_COMMAND if missing else _CANNOT_EXECUTE if "permission denied" in text else _FAILED
        with contextlib.suppress(OSError):
            os.write(2, f"dgpu: the command cannot start in the container: {error}\r\n".encode())
    os._exit(code)
