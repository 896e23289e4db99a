"""The agent's side of the keeper's socket: start a keeper if there is none, connect, exchange frames.

Frames to the keeper: `spawn` [{lease task attempt node gpus argv env cwd timeout_ms grace_ms signal secrets}], `warn`
[lease], `stop` [[lease, grace_ms, cause]], `thaw` [lease], `forget` [lease], `word` [[node, at_ms, lease_ms, action]],
`shutdown`, `agent` {protocol}, `ping` number.
Frames from it: `hello` {protocol oldest keeper pid leases dirs}, `pong` number with `stalled` if its disk does not
answer, `started` [[lease, at_ms]], `ended` [{lease outcome exit_code signal error ended_ms output_bytes output_lost
unkilled cpu_ms rss_mb}], `frozen` [lease], `refused` reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from dgpu.agent import keeper_main
from dgpu.agent.frames import OLDEST_PROTOCOL, PROTOCOL, Decoder, Frame, encode
from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.pulse import TICK_SECONDS

SOCKET_NAME = "keeper.sock"
_LAUNCH_SECONDS = 90  # a new keeper waits until all tasks of a dead one have ended


class KeeperError(Exception):
    """The keeper cannot be started or does not answer. One line for people."""


class KeeperGoneError(KeeperError):
    """The keeper ended or closed the connection."""


def launch(settings: KeeperSettings) -> None:
    """Starts a guard with its keeper and returns when the keeper listens. Blocks; both outlive the caller."""
    for directory in (settings.directory, settings.work_dir, settings.output_dir):
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    script = str(Path(keeper_main.__file__))
    arguments = [sys.executable, "-I", "-S", "-X", "utf8", script, json.dumps(dataclasses.asdict(settings))]
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_LAUNCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeeperError(f"the keeper could not be started: {error}") from error
    if done.returncode != 0:
        raise KeeperError(done.stderr.decode(errors="replace").strip() or "the keeper could not be started")


def connect(directory: Path, name: str = SOCKET_NAME) -> socket.socket:
    """Uses the directory's descriptor: the whole path may be longer than a socket address allows."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(10)
        link.connect(f"/proc/self/fd/{folder}/{name}")
    except OSError:
        link.close()
        raise
    finally:
        os.close(folder)
    return link


def protocol_of(hello: dict[str, Any]) -> int:
    """The protocol to speak with this keeper. A keeper outlives agents, so it may be older or newer than this one."""
    newest = int(hello.get("protocol", 1))
    oldest = int(hello.get("oldest", newest))
    spoken = min(newest, PROTOCOL)
    if spoken < max(oldest, OLDEST_PROTOCOL):
        raise KeeperError(
            f"the keeper (pid {hello.get('pid')}) speaks protocol {oldest} to {newest}, this agent "
            f"{OLDEST_PROTOCOL} to {PROTOCOL}: start the agent's version that fits until its tasks have ended"
        )
    return spoken


def is_answering(directory: Path) -> bool:
    """Checks a keeper without pings: it refuses a second connection at once, unless it hangs. Blocks."""
    try:
        with connect(directory) as link:
            link.settimeout(TICK_SECONDS)
            return bool(link.recv(1))
    except OSError:
        return False


class KeeperLink(asyncio.Protocol):
    """Frames over one connection. `on_lost` is called once, when the connection is lost."""

    def __init__(self, *, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, settings: KeeperSettings, *, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]
    ) -> KeeperLink:
        """Connects to the keeper of the directory; starts one if there is none."""
        directory = Path(settings.directory)
        try:
            found = await asyncio.to_thread(connect, directory)
        except OSError:
            await asyncio.to_thread(launch, settings)
            try:
                found = await asyncio.to_thread(connect, directory)
            except OSError as error:
                raise KeeperError(f"the keeper does not answer: {error}") from error
        link = cls(on_frame=on_frame, on_lost=on_lost)
        found.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=found)
        return link

    def send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(encode(frame))

    def close(self) -> None:
        """Disconnects; the keeper and its tasks continue."""
        self._on_lost = _nothing
        if self._transport is not None:
            self._transport.close()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # always a Transport for sockets; uvloop's class is not asyncio's, so it cannot be asserted
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._on_lost()


def _nothing() -> None:
    pass
