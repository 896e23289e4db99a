"""Commands that people start inside runs, and the terminals of runs. Standard library only; runs in the keeper.

A command is a child of the keeper and belongs to its run: it has the run's environment, user and groups, is frozen and
killed with the run, and the run does not end before it. Another process moves the bytes (`terminals`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import termios
from typing import Any, NamedTuple

from dgpu.agent.containers.kept import inside_order
from dgpu.agent.corral import Corral
from dgpu.agent.fences import NO_GROUPS, Fences
from dgpu.agent.frames import Frame
from dgpu.agent.held import Held
from dgpu.agent.spawn import CannotStart, Child, Ends
from dgpu.agent.spawn_apart import read_status
from dgpu.agent.starter import Starter
from dgpu.agent.terminal_link import LinkGone, TerminalLink, close_all

MAX_COMMANDS = 32  # of one run
_KILL_AFTER_MS = 5_000  # after the hang-up
_IUTF8 = 0o40000  # termios has no name for it
_DEFAULT_SIZE = (24, 80)


class Terminal(NamedTuple):
    master: int
    slave: int
    path: str


class Command(NamedTuple):
    id: int
    held: Held
    pid: int
    status_fd: int


class Entries:
    def __init__(
        self,
        link: socket.socket,
        epoll: select.epoll,
        *,
        starter: Starter,
        live: dict[int, Held],
        corral: Corral,
        fences: Fences,
    ) -> None:
        self._link: TerminalLink | None = TerminalLink(link, epoll)
        self._starter = starter
        self._live = live
        self._corral = corral
        self._fences = fences
        self._by_pid: dict[int, Command] = {}
        self._undrained: set[int] = set()  # leases with a terminal
        self._finishing: set[int] = set()

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.fileno()

    # -- terminals of runs

    def open_terminal(self, uid: int | None, gid: int | None) -> Terminal:
        """Raises OSError."""
        if self._link is None:
            raise OSError("the node's process for terminals has ended")
        return _new_terminal(uid, gid, _DEFAULT_SIZE)

    def hold_terminal(self, lease: int, master: int, log_fd: int) -> None:
        """Takes over the descriptors."""
        self._undrained.add(lease)
        opened = {"id": lease, "task": True, "terminal": True, "fds": 2}
        self._send({"open": [opened]}, [master, log_fd])

    def is_drained(self, held: Held) -> bool:
        """Whether all output of an ended run has been passed on. If not, the lease is due again when it has been."""
        lease = held.lease
        if lease in self._undrained and lease not in self._finishing:
            self._finishing.add(lease)
            self._send({"finish": [[lease, _code(held.exit_status or 0), ""]]})
        return lease not in self._undrained

    # -- the process for terminals

    def serve(self, mask: int, now_ms: int) -> list[int]:
        """Leases to look at now."""
        due: list[int] = []
        if self._link is None:
            return due
        try:
            frames = self._link.serve(mask)
        except LinkGone:
            return self._lose_link()
        for frame in frames:
            for asked in frame.get("run", ()):
                self._run(asked)
            for command_id in frame.get("hang_up", ()):
                due += self._hang_up(command_id, now_ms)
            for lease in frame.get("drained", ()):
                self._undrained.discard(lease)
                self._finishing.discard(lease)
                due.append(lease)
        return due if self._link is not None else [*due, *self._lose_link()]

    def _lose_link(self) -> list[int]:
        """Terminals hang up, and their programs get SIGHUP. Other runs continue."""
        if self._link is not None:
            self._link.close()
            self._link = None
        due, self._undrained = list(self._undrained), set()
        return due

    def _send(self, frame: Frame, descriptors: list[int] | None = None) -> None:
        if self._link is None:
            close_all(descriptors or ())
            return
        try:
            self._link.send(frame, descriptors or ())
        except LinkGone:
            self._lose_link()

    # -- commands

    def _run(self, asked: dict[str, Any]) -> None:
        held = self._live.get(asked["lease"])
        reason, detail = _refusal(held, asked)
        if held is not None and not reason:
            started = self._start(held, asked)
            if not isinstance(started, CannotStart):
                return
            reason, detail = started.outcome, started.error
        self._send({"refused": [[asked["id"], reason, detail]]})

    def _start(self, held: Held, asked: dict[str, Any]) -> CannotStart | None:
        size = asked.get("size")
        ours: list[int] = []  # for the process for terminals
        theirs: list[int] = []  # of the child
        try:
            if size:
                # In a container, a process of the keeper's user stands between this terminal and the program.
                account = (None, None) if held.container else held.account or (None, None)
                terminal = _new_terminal(account[0], account[1], size)
                ours, theirs = [terminal.master], [terminal.slave]
                ends = Ends(terminal=terminal.path)
            else:
                for number in range(3):
                    read_end, write_end = os.pipe2(os.O_CLOEXEC)
                    ours.append(read_end if number else write_end)
                    theirs.append(write_end if number else read_end)
                ends = Ends(theirs[0], theirs[1], theirs[2])
            child = self._spawn(held, asked, ends)
        except OSError as error:
            child = CannotStart("node_fault", 126, f"cannot start the command: {error.strerror}")
        finally:
            close_all(theirs)
        if isinstance(child, CannotStart):
            close_all(ours)
            return child
        held.entered[child.pid] = 0
        self._by_pid[child.pid] = Command(asked["id"], held, child.pid, child.status_fd)
        opened = {"id": asked["id"], "task": False, "terminal": bool(size), "fds": len(ours)}
        self._send({"open": [opened]}, ours)
        return None

    def _spawn(self, held: Held, asked: dict[str, Any], ends: Ends) -> Child | CannotStart:
        if held.container is not None:
            held.container.was_entered = True
            child = self._starter.spawn(inside_order(held, held.container, asked), "/", NO_GROUPS, ends)
            os.chdir("/")
            return child
        order = {
            "argv": asked["argv"],
            "env": asked["env"] | held.env,  # the run's own variables mark the process
            "cwd": held.cwd,
            "account": held.account,
        }
        if asked.get("size"):
            order["env"] = order["env"] | {"TERM": asked["env"].get("TERM", "xterm")}
        groups = self._fences.entries_of(held.lease) if held.account else NO_GROUPS
        child = self._starter.spawn(order, held.cwd, groups, ends)
        os.chdir("/")
        if isinstance(child, Child) and held.grouped and not held.fenced:
            self._corral.gather(held.lease, [child.pid])
        return child

    def reaped(self, pid: int, status: int) -> bool:
        """False: this process is not such a command."""
        command = self._by_pid.pop(pid, None)
        if command is None:
            return False
        command.held.entered.pop(pid, None)
        exit_code, error = _code(status), ""
        if command.status_fd >= 0:
            told = read_status(command.status_fd)
            os.close(command.status_fd)
            if isinstance(told, CannotStart):
                exit_code, error = told.exit_code, told.error
        self._send({"finish": [[command.id, exit_code, error]]})
        return True

    def _hang_up(self, command_id: int, now_ms: int) -> list[int]:
        """Its client has gone: the command gets SIGHUP, and SIGKILL if it stays."""
        for command in self._by_pid.values():
            if command.id == command_id:
                hang_up(command.pid)
                command.held.entered[command.pid] = now_ms + _KILL_AFTER_MS
                return [command.held.lease]
        return []


def hang_up(pid: int) -> None:
    """Signals the group of an unreaped child, which leads its session."""
    for number in (signal.SIGHUP, signal.SIGCONT):
        with contextlib.suppress(OSError):
            os.killpg(pid, number)


def _refusal(held: Held | None, asked: dict[str, Any]) -> tuple[str, str]:
    if held is None or held.node != asked["node"] or held.exit_status is not None:
        return "run_ended", "the run has ended"
    if held.kill_at_ms or held.cause:
        return "run_ended", "the run is being stopped"
    if held.frozen_since_ms:
        return "run_frozen", "the run is frozen: its node had no contact with a scheduler"
    if held.status_fd >= 0 or (held.container is not None and held.container.root is None):
        return "run_starting", "the run has not started yet"
    if len(held.entered) >= MAX_COMMANDS:
        return "too_many_commands", f"{MAX_COMMANDS} commands run in this task already"
    return "", ""


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _new_terminal(uid: int | None, gid: int | None, size: tuple[int, int]) -> Terminal:
    """Owned by the user of the task, as a terminal of a login is."""
    master, slave = os.openpty()
    try:
        if uid is not None and gid is not None:
            os.fchown(slave, uid, gid)
            os.fchmod(slave, 0o600)
        attributes = termios.tcgetattr(slave)
        attributes[0] |= _IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        termios.tcsetwinsize(slave, (max(1, min(size[0], 10_000)), max(1, min(size[1], 10_000))))
        return Terminal(master, slave, os.ttyname(slave))
    except OSError:
        close_all((master, slave))
        raise
