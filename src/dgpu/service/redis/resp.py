"""The protocol of Redis (RESP2), as far as a mirror needs it: commands in one write, their replies in order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

CONNECT_SECONDS: Final = 10.0
REPLY_SECONDS: Final = 30.0
DEFAULT_PORT: Final = 6379
MAX_REPLY_BYTES: Final = 1 << 20
_SECURE: Final = "rediss"

Argument = str | bytes | int | float
Reply = bytes | int | None | list["Reply"]


class RedisFailed(Exception):  # noqa: N818 - the name states the failure
    """Redis refused a command, or the connection was lost."""


class Target(NamedTuple):
    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    password: str = ""
    database: int = 0
    has_tls: bool = False


def parse_url(url: str) -> Target:
    """redis://[user:password@]host[:port][/database], rediss:// with TLS. ValueError names the expected form."""
    parts = urlsplit(url)
    database = parts.path.strip("/") or "0"
    if parts.scheme not in {"redis", _SECURE} or not parts.hostname or not database.isdigit():
        raise ValueError("expected redis://[user:password@]host[:port][/database], or rediss:// for TLS")
    return Target(
        host=parts.hostname,
        port=parts.port or DEFAULT_PORT,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=int(database),
        has_tls=parts.scheme == _SECURE,
    )


def encode(*arguments: Argument) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        word = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, target: Target) -> Connection:
        """Raises RedisFailed."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                tls = ssl.create_default_context() if target.has_tls else None
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, ssl=tls, limit=MAX_REPLY_BYTES
                )
        except OSError as error:
            raise RedisFailed(f"no connection to {target.host}:{target.port}: {error}") from error
        connection = cls(reader, writer)
        greeting: list[bytes] = []
        if target.password:
            greeting.append(encode("AUTH", *([target.user] if target.user else []), target.password))
        if target.database:
            greeting.append(encode("SELECT", target.database))
        try:
            await connection.call(*greeting)
        except RedisFailed:
            connection.close()
            raise
        return connection

    async def call(self, *commands: bytes) -> list[Reply]:
        """All in one write. Raises RedisFailed for the first refused one, after all replies."""
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                self._writer.write(b"".join(commands))
                await self._writer.drain()
                replies = [await self._reply() for _ in commands]
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            raise RedisFailed(f"the connection was lost: {error or type(error).__name__}") from error
        for reply in replies:
            if isinstance(reply, _Refused):
                raise RedisFailed(str(reply, "utf-8", "replace"))
        return replies

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    async def _reply(self) -> Reply:
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return _Refused(rest)
        if kind == b":":
            return int(rest)
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else (await self._reader.readexactly(length + 2))[:-2]
        if kind == b"*":
            return [await self._reply() for _ in range(int(rest))]
        raise ValueError(f"not a reply of Redis: {line[:40]!r}")


class _Refused(bytes):
    pass


def words(pairs: Sequence[tuple[str, Argument]]) -> list[Argument]:
    return [word for pair in pairs for word in pair]
