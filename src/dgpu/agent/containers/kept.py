"""Containers in the keeper: starts their runners, reads their words, removes what a dead runner left. Standard library
only.

The processes of a container are children of the engine, so the keeper knows them by the first process, which its
runner reports. If that process ends, the kernel ends all others of the container.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgpu.agent.containers import inside_main, runner_main
from dgpu.agent.containers.body import KEEPER_LABEL, LEASE_LABEL, SPEC_VARIABLE, container_name
from dgpu.agent.output_files import output_files_of
from dgpu.agent.secret_dirs import SECRETS_VARIABLE
from dgpu.agent.spawn import DEFAULT_SIGNALS, CannotStart, Child, failure_of
from dgpu.agent.terminal_link import close_all
from dgpu.agent.tree import KEEPER_MARKER, LEASE_MARKER, Survey, pid_namespace, read_proc

if TYPE_CHECKING:
    from dgpu.agent.held import Held

_READ_BYTES = 65_536
_FREEZE = "cgroup.freeze"


class Container:
    """One run's container, as far as the keeper knows it."""

    __slots__ = (
        "_words",
        "at_end",
        "end",
        "gone",
        "group",
        "name",
        "root",
        "socket",
        "sweeping",
        "was_entered",
        "words_fd",
    )

    def __init__(self, words_fd: int, *, name: str, socket: str) -> None:
        self.words_fd = words_fd  # -1: closed
        self.name, self.socket = name, socket  # of the container, of its engine
        self.was_entered = False  # commands that people start inside are no descendants of its first process
        self._words = b""
        self.at_end = False  # its runner says no more
        self.root: tuple[int, int] | None = None  # pid and start of its first process
        self.group = ""  # its own control group; empty: none that can be frozen
        self.end: CannotStart | None = None  # outcome, exit code and error, as its runner told
        self.gone = False  # the engine has no such container any more
        self.sweeping = False  # a process removes it

    @property
    def has_ended(self) -> bool:
        """Certain without the engine."""
        if self.gone:
            return True
        if self.root is None:
            return False
        now = read_proc(self.root[0])
        return now is None or now.dead or now.start_ticks != self.root[1]

    def roots(self, survey: Survey) -> list[int]:
        if self.root is None:
            return []
        pid, start_ticks = self.root
        found = survey.procs.get(pid)
        if found is None or found.start_ticks != start_ticks:
            return []
        return [pid, *_same_namespace(survey, pid)] if self.was_entered else [pid]

    def read(self) -> bool:
        """True: its first process became known now."""
        known = self.root
        with contextlib.suppress(BlockingIOError):
            while not self.at_end:
                received = os.read(self.words_fd, _READ_BYTES)
                self._words += received
                self.at_end = not received
        *lines, self._words = self._words.split(b"\n")
        for line in lines:
            word = json.loads(line)
            if "root" in word:
                self.root, self.group = (word["root"][0], word["root"][1]), word["group"]
            if "end" in word:
                self.end, self.gone = CannotStart(*word["end"]), word["gone"]
        return known is None and self.root is not None

    def freeze(self, *, frozen: bool) -> bool:
        """Whether its control group did it."""
        try:
            if self.group:
                Path(self.group, _FREEZE).write_text("1" if frozen else "0")
        except OSError:
            return False
        return bool(self.group)


class ContainerRunners:
    """Starts the processes that talk to the engine: the keeper itself never does, because an engine may hang."""

    def __init__(self, keeper_id: str, epoll: select.epoll) -> None:
        self._keeper_id = keeper_id
        self._epoll = epoll
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._by_fd: dict[int, Held] = {}

    def spawn(
        self, order: dict[str, Any], own_dir: str, terminal: int = -1
    ) -> tuple[Child, Container] | tuple[CannotStart, None]:
        """`terminal`: a descriptor for all streams; -1: the runner gets pipes."""
        lease: int = order["lease"]
        spec = order["container"] | {
            "action": "run",
            "terminal": terminal >= 0,
            "name": container_name(self._keeper_id, lease),
            "labels": {KEEPER_LABEL: self._keeper_id, LEASE_LABEL: str(lease)},
            "argv": order["argv"],
            "env": order["env"],
            "secrets_dir": order["env"].get(SECRETS_VARIABLE, ""),
            "dir": order["cwd"] or own_dir,
            "own": not order["cwd"],
            "files": output_files_of(order),
        }
        far, near = socket.socketpair() if spec["files"] else (None, None)
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in range(3 if terminal < 0 else 1):  # the last pair is for words
                read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                ours.append(read_end)
                theirs.append(write_end)
                os.set_blocking(write_end, True)
            streams = (theirs[0], theirs[1]) if terminal < 0 else (terminal, terminal)
            more = () if near is None else (near.fileno(),)
            pid = self._execute(lease, spec, (*streams, theirs[-1], *more))
        except OSError as error:
            close_all(ours)
            if far is not None:
                far.close()
            return failure_of(error, "container"), None
        finally:
            close_all(theirs)
            if near is not None:
                near.close()
        container = Container(ours[-1], name=spec["name"], socket=spec["socket"])
        if terminal >= 0:
            return Child(pid, -1), container
        files_fd = -1 if far is None else far.detach()
        return Child(pid, ours[0], errors_fd=ours[1], files_fd=files_fd), container

    def sweep(self, lease: int, socket: str) -> int:
        """The pid of a process that ends when the engine has no such container. Raises OSError."""
        spec = {"action": "remove", "name": container_name(self._keeper_id, lease), "socket": socket}
        return self._execute(lease, spec, (self._null, self._null, self._null))

    def open(self, held: Held, container: Container) -> None:
        held.container = container
        self._by_fd[container.words_fd] = held
        self._epoll.register(container.words_fd, select.EPOLLIN)

    def find(self, fd: int) -> Held | None:
        return self._by_fd.get(fd)

    def close(self, container: Container) -> None:
        if container.words_fd >= 0:
            self._epoll.unregister(container.words_fd)
            del self._by_fd[container.words_fd]
            os.close(container.words_fd)
            container.words_fd = -1

    def _execute(self, lease: int, spec: dict[str, Any], fds: tuple[int, ...]) -> int:
        """`fds`: stdout, stderr, words, and output files if there are any. The spec goes through memory: a command line
        and an environment can be read by others.
        """
        told = os.memfd_create("container", os.MFD_CLOEXEC)
        try:
            os.write(told, json.dumps(spec).encode("utf-8", "surrogatepass"))
            os.lseek(told, 0, os.SEEK_SET)
            actions = [
                (os.POSIX_SPAWN_DUP2, told, 0),
                *((os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(fds, start=1)),
            ]
            script = str(Path(runner_main.__file__))
            argv = [sys.executable, "-I", "-S", "-X", "utf8", script, f"lease-{lease:d}"]
            env = {LEASE_MARKER: str(lease), KEEPER_MARKER: self._keeper_id}
            return os.posix_spawn(
                sys.executable,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=DEFAULT_SIGNALS,
            )
        finally:
            os.close(told)


def inside_order(held: Held, container: Container, asked: dict[str, Any]) -> dict[str, Any]:
    """The process that runs a command inside a container: it speaks to the engine, as the keeper's own user."""
    has_terminal = bool(asked.get("size"))
    env = asked["env"] | ({"TERM": asked["env"].get("TERM", "xterm")} if has_terminal else {})
    spec = {
        "socket": container.socket,
        "name": container.name,
        "terminal": has_terminal,
        "argv": asked["argv"],
        "env": env,
    }
    marks = {name: held.env[name] for name in (LEASE_MARKER, KEEPER_MARKER) if name in held.env}
    return {
        "argv": [sys.executable, "-I", "-S", "-X", "utf8", str(Path(inside_main.__file__))],
        "env": {**marks, SPEC_VARIABLE: json.dumps(spec)},
        "cwd": "/",
        "account": None,
    }


def _same_namespace(survey: Survey, root: int) -> list[int]:
    """All processes of a container, also those that its engine started beside the first one."""
    try:
        wanted = pid_namespace(root)
    except OSError:
        return []
    if wanted == pid_namespace("self"):
        return []  # no namespace of its own: it would be every process of the node
    found = []
    for pid in survey.procs:
        with contextlib.suppress(OSError):
            if pid_namespace(pid) == wanted:
                found.append(pid)
    return found


def remove_containers(sockets: set[str], keeper_id: str) -> bool:
    """Removes the containers of an ended keeper. False: an engine does not answer, so one may still run."""
    from dgpu.agent.containers.engine import (  # only now: the keeper does without an HTTP client
        Engine,
        EngineError,
    )

    for path in sorted(sockets):
        try:
            engine = Engine(path)
            for container_id in engine.labelled(f"{KEEPER_LABEL}={keeper_id}"):
                engine.remove(container_id)
        except EngineError:
            return False
    return True
