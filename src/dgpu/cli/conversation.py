"""Connects this terminal, or stdin and stdout, with a channel to a task."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import typer

from dgpu.cli.detach_keys import DetachKeys
from dgpu.cli.failures import ReaderLeft

if TYPE_CHECKING:
    from dgpu.client.channel import Channel
    from dgpu.client.sync import Client
    from dgpu.wire.channel_answers import OpenedChannel

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ_BYTES = 16 << 10


class Ended(NamedTuple):
    reason: str  # ended, replaced, detached, interrupted, lost
    detail: str = ""
    exit_code: int = 0


def require_terminal(instead: str) -> None:
    """Raises a usage error. `instead`: what works without a terminal."""
    for fd, name in ((_STDIN, "input"), (_STDOUT, "output")):
        if not os.isatty(fd):
            raise typer.BadParameter(f"standard {name} is not a terminal. {instead}")


def window_size() -> tuple[int, int]:
    size = os.get_terminal_size(_STDOUT)
    return max(1, size.lines), max(1, size.columns)


def terminal_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name)}


def converse(client: Client, opened: OpenedChannel, *, is_terminal: bool, sends_input: bool = True) -> Ended:
    """Until the channel ends. A terminal is in raw mode meanwhile: Ctrl-C goes to the program."""
    with _raw_mode() if is_terminal else contextlib.nullcontext():
        return asyncio.run(
            _Conversation(is_terminal=is_terminal).run(client, opened, sends_input=sends_input)
        )


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    before = termios.tcgetattr(_STDIN)
    try:
        tty.setraw(_STDIN)
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


class _Conversation:
    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._keys = DetachKeys()
        self._left: asyncio.Future[Ended] | None = None

    async def run(self, client: Client, opened: OpenedChannel, *, sends_input: bool) -> Ended:
        from dgpu.client.channel import connect

        loop = asyncio.get_running_loop()
        self._left = loop.create_future()
        channel = await connect(client, opened)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, Ended("interrupted"))
        if self._is_terminal:
            loop.add_signal_handler(signal.SIGWINCH, lambda: channel.resize(*window_size()))
            channel.resize(*window_size())
        if sends_input:
            threading.Thread(target=self._read_input, args=(channel, loop), daemon=True).start()
        else:
            channel.end_input()
        showing = asyncio.ensure_future(self._show(channel))
        try:
            await asyncio.wait({showing, self._left}, return_when=asyncio.FIRST_COMPLETED)
            return self._left.result() if self._left.done() else showing.result()
        finally:
            showing.cancel()
            with contextlib.suppress(OSError):
                channel.close()

    async def _show(self, channel: Channel) -> Ended:
        from dgpu.client.channel import Output
        from dgpu.client.errors import Unreachable

        try:
            while isinstance(told := await channel.receive(), Output):
                fd = _STDERR if told.is_error_output else _STDOUT
                await asyncio.to_thread(
                    _write_all, fd, told.data
                )  # a reader that waits must not stop the pings
        except Unreachable as error:
            return Ended("lost", str(error))
        return Ended(told.closed, told.detail, told.exit_code)

    def _leave(self, ended: Ended) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(ended)

    def _read_input(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, because a file cannot be waited for. It waits while the program takes no input."""
        pass_on: Callable[[bytes], bytes] = self._keys.feed if self._is_terminal else bytes
        with contextlib.suppress(OSError, RuntimeError):  # the loop may be closed
            while typed := os.read(_STDIN, _READ_BYTES):
                keys = pass_on(typed)
                asyncio.run_coroutine_threadsafe(_send(channel, keys), loop).result()
                if self._keys.are_pressed:
                    loop.call_soon_threadsafe(self._leave, Ended("detached"))
                    return
            loop.call_soon_threadsafe(channel.end_input)


async def _send(channel: Channel, keys: bytes) -> None:
    from dgpu.client.errors import Unreachable

    with contextlib.suppress(Unreachable):  # the reader of the output tells
        await channel.send(keys)


def _write_all(fd: int, data: bytes) -> None:
    (sys.stdout if fd == _STDOUT else sys.stderr).flush()
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BrokenPipeError:
            raise ReaderLeft from None
