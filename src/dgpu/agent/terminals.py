"""Holds the terminals of tasks, and the streams of commands inside runs, in a process beside the keeper.

Standard library only. It outlives the agent: a client attaches again through the next one. A terminal is kept by its
task; its output goes to the task's output too. One client is attached at a time: a new one replaces the last one. The
keeper starts and ends all processes; this process only moves bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
from pathlib import Path
from typing import Any

from dgpu.agent.door import listen
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.terminal_frames import (
    DATA,
    END,
    OPEN,
    OPENED,
    SIZE,
    SOCKET_NAME,
    BadFrame,
    encode,
)
from dgpu.agent.terminal_link import LinkGone, TerminalLink, close_all
from dgpu.agent.terminal_session import MAX_INPUT_BYTES, Client, Session
from dgpu.file_limit import raise_file_limit

MAX_CLIENTS = 256
STUCK_MS = 10_000  # then a client that takes nothing is detached, and its task continues
_READ_BYTES = 256 * 1024
_MAX_SIZE = 10_000


class Terminals:
    def __init__(self, settings: KeeperSettings, link: socket.socket) -> None:
        self._epoll = select.epoll()
        self._link = TerminalLink(link, self._epoll)
        self._listener = listen(Path(settings.directory, SOCKET_NAME))
        self._epoll.register(self._listener, select.EPOLLIN)
        self._sessions: dict[int, Session] = {}
        self._by_fd: dict[int, Session] = {}
        self._clients: dict[int, Client] = {}  # by descriptor
        self._asking: dict[int, Client] = {}  # commands that the keeper starts now
        self._watched: dict[int, int] = {}
        self._last_id = 0

    def run(self) -> None:
        """Runs until the keeper has ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        raise_file_limit()
        while True:
            is_timed = any(client.is_full or client.is_closing for client in self._clients.values())
            for fd, mask in self._epoll.poll(1 if is_timed else -1):
                self._serve(fd, mask)
            self._settle(boot_ms())

    def _serve(self, fd: int, mask: int) -> None:
        if fd == self._link.fileno():
            for frame in self._link.serve(mask):
                self._obey(frame)
        elif fd == self._listener.fileno():
            self._accept()
        elif (client := self._clients.get(fd)) is not None:
            if mask & ~select.EPOLLOUT:
                self._hear(client)
        elif (session := self._by_fd.get(fd)) is not None:
            session.serve(fd)

    def _settle(self, now_ms: int) -> None:
        """After each round: finishes sessions, sends to clients, and waits for the events that are wanted now."""
        for session in [each for each in self._sessions.values() if each.end is not None]:
            if session.drain():
                self._finish(session)
        for client in tuple(self._clients.values()):
            self._push(client, now_ms)
        wanted: dict[int, int] = {}
        for session in self._sessions.values():
            wanted |= session.wanted()
        for fd, client in self._clients.items():
            wanted[fd] = select.EPOLLIN if _may_send(client) else 0
            wanted[fd] |= select.EPOLLOUT if client.unsent else 0
        self._watch(wanted)

    def _watch(self, wanted: dict[int, int]) -> None:
        """A descriptor without a wanted event is not registered: its end would wake this process for ever."""
        wanted = {fd: mask for fd, mask in wanted.items() if mask}
        for fd in self._watched.keys() - wanted.keys():
            with contextlib.suppress(OSError):  # it was closed
                self._epoll.unregister(fd)
        for fd, mask in wanted.items():
            if fd not in self._watched:
                self._epoll.register(fd, mask)
            elif self._watched[fd] != mask:
                self._epoll.modify(fd, mask)
        self._watched = wanted

    # -- clients

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in {0, os.geteuid()} or len(self._clients) >= MAX_CLIENTS:
                peer.close()
                return
            peer.setblocking(False)
            self._clients[peer.fileno()] = Client(peer)

    def _hear(self, client: Client) -> None:
        try:
            received = client.socket.recv(_READ_BYTES)
            frames = client.decoder.feed(received)
            for kind, body in frames:
                self._on_frame(client, kind, body)
        except BlockingIOError:
            return
        except (OSError, BadFrame, ValueError, KeyError, TypeError):
            received = b""
        if not received:
            self._drop(client)

    def _on_frame(self, client: Client, kind: bytes, body: bytes) -> None:
        if kind == OPEN and client.session is None and not client.is_closing:
            self._open(client, json.loads(body))
        elif (session := client.session) is None:
            return  # it has ended meanwhile
        elif kind == DATA:
            session.take_input(body)
        elif kind == SIZE:
            session.set_size(*_size(json.loads(body)))
        elif kind == END:
            session.end_input()

    def _open(self, client: Client, asked: dict[str, Any]) -> None:
        if "argv" in asked:
            self._last_id -= 1
            self._asking[self._last_id] = client
            self._link.send({"run": [asked | {"id": self._last_id}]})
            return
        session = self._sessions.get(asked["lease"])
        if session is None or session.end is not None:
            client.close_with("no_terminal", "the task has no terminal, or it has ended")
            return
        if session.client is not None:
            session.client.close_with("replaced", "another client has attached")
        self._join(client, session)
        client.send(encode(DATA, session.replay.text()))
        session.set_size(*_size(asked["size"]))
        session.redraw()

    def _join(self, client: Client, session: Session) -> None:
        client.session, session.client = session, client
        client.send(encode(OPENED))

    def _push(self, client: Client, now_ms: int) -> None:
        try:
            client.push()
        except OSError:
            self._drop(client)
            return
        if client.is_closing and not client.unsent:
            self._drop(client)
            return
        if not (client.is_full or client.is_closing):
            return
        client.stuck_since_ms = client.stuck_since_ms or now_ms
        is_command = client.session is not None and not client.session.is_task
        if now_ms - client.stuck_since_ms >= STUCK_MS and not is_command:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        """A command ends with its client; the terminal of a task stays."""
        fd = client.socket.fileno()
        if fd < 0:
            return
        self._forget_fd(fd)
        del self._clients[fd]
        client.socket.close()
        session, client.session = client.session, None
        if session is not None:
            session.client = None
            if not session.is_task:
                self._link.send({"hang_up": [session.id]})
        for command, asking in tuple(self._asking.items()):
            if asking is client:
                del self._asking[command]  # it is hung up when it starts

    # -- the keeper

    def _obey(self, frame: dict[str, Any]) -> None:
        for opened in frame.get("open", ()):
            taken, self._link.descriptors = (
                self._link.descriptors[: opened["fds"]],
                self._link.descriptors[opened["fds"] :],
            )
            self._begin(opened, taken)
        for command, reason, detail in frame.get("refused", ()):
            client = self._asking.pop(command, None)
            if client is not None:
                client.close_with(reason, detail)
        for session_id, exit_code, error in frame.get("finish", ()):
            session = self._sessions.get(session_id)
            if session is not None:
                session.end = (exit_code, error)

    def _begin(self, opened: dict[str, Any], descriptors: list[int]) -> None:
        client = self._asking.pop(opened["id"], None)
        if client is None and not opened["task"]:
            close_all(descriptors)
            self._link.send({"hang_up": [opened["id"]]})
            return
        session = Session(opened, descriptors, self._forget_fd)
        self._sessions[session.id] = session
        self._by_fd |= dict.fromkeys(session.descriptors(), session)
        if client is not None:
            self._join(client, session)

    def _finish(self, session: Session) -> None:
        exit_code, error = session.end or (0, "")
        if session.client is not None:
            session.client.close_with("ended", error, exit_code)
        session.close()
        del self._sessions[session.id]
        if session.is_task:
            self._link.send({"drained": [session.id]})

    def _forget_fd(self, fd: int) -> None:
        self._by_fd.pop(fd, None)
        if self._watched.pop(fd, 0):
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)


def _may_send(client: Client) -> bool:
    """A program that does not read its input stops its client. A client without a session may leave."""
    return client.session is None or len(client.session.input) < MAX_INPUT_BYTES


def _size(given: list[int]) -> tuple[int, int]:
    rows, columns = (max(1, min(int(each), _MAX_SIZE)) for each in given)
    return rows, columns


def be_terminals(settings: KeeperSettings, link: socket.socket) -> None:
    """The main function of the process. Does not return."""
    code = 1
    try:
        os.chdir("/")
        Terminals(settings, link).run()
    except LinkGone:
        code = 0
    except BaseException:  # noqa: BLE001 - the last line of the process: say it, then end
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        os._exit(code)
