"""Schedulers of one cluster in the loop of a test. They share an engine in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dgpu.entry.chaos.ports import free_port
from dgpu.journal.memory_engine import MemoryEngine, SharedState
from dgpu.service.access.key_file import KEY_BYTES, write_keys
from dgpu.service.access.key_file import KEY_NAME as TOKEN_KEY
from dgpu.service.options import ServedAt, ServiceOptions, SharedOptions
from dgpu.service.secrets.vault import KEY_NAME as SECRETS_KEY
from dgpu.service.server import serve
from dgpu.wire.address import Address

DEADLINE_S = 60.0


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Member:
    def __init__(self, directory: Path, shared: SharedState, name: str, **options: Any) -> None:
        self.engine = MemoryEngine(shared)
        self.http, self.grpc = free_port(), free_port()
        self.options = ServiceOptions(
            data_dir=directory / name,
            http=Address(host="127.0.0.1", port=self.http),
            grpc=Address(host="127.0.0.1", port=self.grpc),
            shared=SharedOptions(
                name=name, http=f"http://127.0.0.1:{self.http}", grpc=f"127.0.0.1:{self.grpc}"
            ),
            **options,
        )
        self.share_keys()
        self.at: list[ServedAt] = []
        self._stop = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None

    def share_keys(self, key: bytes = bytes(KEY_BYTES)) -> None:
        """Schedulers of one cluster have the same key files."""
        self.options.data_dir.mkdir(parents=True, exist_ok=True)
        for name in (TOKEN_KEY, SECRETS_KEY):
            write_keys(self.options.data_dir / name, [key])

    async def start(self) -> Member:
        self.begin()
        await self.until(lambda: bool(self.at))
        return self

    def begin(self, *, engine_is_down: bool = False) -> None:
        self._stop = asyncio.Event()
        self.engine.is_down = engine_is_down
        self.serving = asyncio.create_task(
            serve(self.options, self.at.append, stop=self._stop, engine=self.engine)
        )

    def limit_staleness(self, ms: int) -> None:
        shared = msgspec.structs.replace(self.options.shared, read_stale_max_ms=ms)
        self.options = msgspec.structs.replace(self.options, shared=shared)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                if self.serving is not None and self.serving.done():
                    self.serving.result()
                await asyncio.sleep(0.02)

    async def until_role(self, role: str) -> None:
        await self.until(lambda: bool(self.at) and self.at[-1].role == role)

    async def stop(self) -> None:
        self._stop.set()
        if self.serving is not None:
            await self.serving
        self.at.clear()

    async def end(self) -> None:
        """Also after a failure."""
        with contextlib.suppress(Exception):
            await self.stop()

    async def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> Told:
        return await asyncio.to_thread(self._ask, path, body, method, headers)

    async def ask_until_heard(self, path: str) -> Told:
        """The socket may not be bound yet."""
        while True:
            try:
                return await self.ask(path)
            except urllib.error.URLError:
                await asyncio.sleep(0.05)

    def _ask(self, path: str, body: Any, method: str | None, headers: dict[str, str]) -> Told:
        url = f"http://127.0.0.1:{self.http}{path}"
        content = None if body is None else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        request = urllib.request.Request(url, content, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return Told(answer.status, _lower(answer.headers), json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return Told(error.code, _lower(error.headers), json.load(error))


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
