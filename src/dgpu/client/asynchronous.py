"""The client for services. Needs httpx, which is imported when the first client is created."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from dgpu.client import repeats, waits
from dgpu.client.call import Awaited
from dgpu.client.calls import Calls
from dgpu.client.errors import DgpuError, Unreachable, unreachable
from dgpu.client.fields import Filters
from dgpu.client.file_calls import check_whole, download_path
from dgpu.client.request import Request, bearer, failure, headers_of, read_answer
from dgpu.client.server import locate
from dgpu.client.stream import EventParser, ServerEvent
from dgpu.client.task_calls import logs_path, submit_parts
from dgpu.wire import answers
from dgpu.wire.file_answers import FileEntry

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncClient(Calls, Awaited):
    """The same calls as `Client`, awaited. Retries cannot submit twice here either."""

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        retries: int = repeats.RETRIES,
    ) -> None:
        import httpx

        self._server = locate(server, token)
        self._retries = retries
        # The same authorities as the other client, SSL_CERT_FILE included.
        trusted = ssl.create_default_context() if self._server.url.startswith("https:") else True
        # No proxies from the environment: the scheduler is near.
        self._http = httpx.AsyncClient(
            base_url=self._server.url, timeout=timeout_seconds, trust_env=False, verify=trusted
        )
        self._broken = (httpx.TransportError,)
        self._no_timeout = httpx.Timeout(timeout_seconds, read=None)

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all connections."""
        await self._http.aclose()

    # Calls of several requests, and streams

    async def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """Any number of tasks, sent in parts of at most 10,000 tasks or 8 MiB.

        All or nothing holds for each part. If a part is refused, the error's `submitted` names the tasks of
        the parts before it, which were accepted.
        """
        submitted: list[str] = []
        for request in submit_parts(tasks):
            try:
                submitted += (await self._do(request)).task_ids
            except DgpuError as error:
                error.submitted = submitted
                raise
        return submitted

    async def list(
        self, *, page_size: int = 500, **filters: Unpack[Filters]
    ) -> AsyncIterator[answers.TaskAnswer]:
        """Newest first; pages are requested as they are read."""
        cursor: str | None = None
        while True:
            page = await self.page(limit=page_size, cursor=cursor, **filters)
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def wait(
        self, *task_ids: str | int, timeout_seconds: float | None = None
    ) -> Sequence[answers.TaskAnswer]:
        """Returns when all tasks have ended, in the given order."""
        until = waits.end_of(timeout_seconds)
        return [await self._wait_for(task_id, until) for task_id in task_ids]

    async def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pauses = waits.pauses()
        while True:
            task = await self.get(task_id)
            if task.status in waits.FINAL:
                return task
            pause = next(pauses)
            waits.check_time(task, pause, until)
            await asyncio.sleep(pause)

    async def logs(
        self,
        task_id: str | int,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The output in pieces as they arrive; with `follow` until the task has ended."""
        path = logs_path(task_id, follow=follow, tail=tail, attempt=attempt, rank=rank)
        async with self._stream(path) as response:
            async for piece in response.aiter_raw():
                yield piece

    async def files(
        self, task_id: str | int, path: str = "", *, attempt: int | None = None, rank: int | None = None
    ) -> AsyncIterator[FileEntry]:
        """All entries of one directory; pages are requested as they are read."""
        cursor: str | None = None
        while True:
            found = await self.file_page(task_id, path, cursor=cursor, attempt=attempt, rank=rank)
            for entry in found.files:
                yield entry
            cursor = found.next_cursor
            if cursor is None:
                return

    async def download(
        self, task_id: str | int, path: str, *, attempt: int | None = None, rank: int | None = None
    ) -> AsyncIterator[bytes]:
        """One file of a task in pieces. Raises Unreachable if it does not arrive completely."""
        asked = download_path(task_id, path, attempt=attempt, rank=rank)
        got = 0
        async with self._stream(asked) as response:
            size = response.headers.get("content-length")
            async for piece in response.aiter_raw():
                got += len(piece)
                yield piece
        check_whole(got, None if size is None else int(size))

    async def events(self, *, after: str | None = None) -> AsyncIterator[ServerEvent]:
        """Events from now on (or after `after`) as they happen, until the connection ends.

        An event of type `lagged` means that some events were left out: read your data again.
        """
        parser = EventParser()
        async with self._stream("/api/v1/events", {"Last-Event-ID": after} if after else {}) as response:
            async for line in response.aiter_lines():
                event = parser.on_line(line)
                if event is not None:
                    yield event

    async def board_events(self) -> AsyncGenerator[ServerEvent]:
        """The dashboard's stream: a `snapshot` of all nodes and GPUs, then a `delta` about once a second."""
        parser = EventParser()
        async with self._stream("/api/v1/board/stream") as response:
            async for line in response.aiter_lines():
                event = parser.on_line(line)
                if event is not None:
                    yield event

    # The exchange

    async def _do(self, request: Request[T]) -> T:
        headers = headers_of(request, self._server.token)
        pauses = repeats.pauses(self._retries)
        while True:
            try:
                response = await self._http.request(
                    request.method, request.path, content=request.body, headers=headers
                )
            except self._broken as error:
                pause = next(pauses, None)
                if pause is None:
                    raise self._unreachable(error) from error
            else:
                status, body = response.status_code, response.content
                retry_after = response.headers.get("retry-after")
                pause = repeats.pause_before_repeat(status, body, retry_after, pauses)
                if pause is None:
                    return read_answer(request, status, body)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _stream(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        sent = {**(headers or {}), **bearer(self._server.token), "Accept-Encoding": "identity"}
        try:
            async with self._http.stream("GET", path, headers=sent, timeout=self._no_timeout) as response:
                if response.status_code != 200:
                    raise failure(response.status_code, await response.aread())
                yield response
        except self._broken as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> Unreachable:
        # h11 reports "illegal request line" or "illegal status line" for data that is not HTTP; other errors mean a
        # broken connection.
        is_http = not str(error).startswith("illegal ")
        return unreachable(self._server.url, error, is_http=is_http)
