"""The client for services. Needs httpx, which is imported when the first client is created."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from dgpu.client import repeats, waits
from dgpu.client.attempts import Answer, AnsweredBy, Attempts, Failure, Schedulers, Turn, answer_of
from dgpu.client.call import Awaited
from dgpu.client.calls import Calls
from dgpu.client.errors import BadRequest, DgpuError, NotFound, Unreachable, why_unreachable
from dgpu.client.fields import Filters, OutputChoice
from dgpu.client.file_calls import Download
from dgpu.client.matching import MatchingLines, matching_later
from dgpu.client.renewal import is_ending, token_of
from dgpu.client.request import Request, bearer, failure, headers_of, read_answer
from dgpu.client.server import Server, locate
from dgpu.client.stream import KEEPALIVE, SILENCE_SECONDS, Breaks, EventParser, OutputPlace, ServerEvent
from dgpu.client.task_calls import LogsQuery, logs_path, submit_parts
from dgpu.client.upload_calls import is_digest, length_of, pieces_of, put_upload
from dgpu.wire import answers
from dgpu.wire.file_answers import FileEntry

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncClient(Calls, Awaited):
    """The same calls as `Client`, awaited. Retries cannot submit twice here either."""

    def __init__(
        self,
        server: str | Iterable[str] | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        retries: int = repeats.RETRIES,
        clean_env: bool = False,
        on_answer: Callable[[AnsweredBy], None] = lambda _: None,
    ) -> None:
        import httpx

        self._schedulers = Schedulers(locate(server, token))
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self.clean_env = clean_env
        self._on_answer = on_answer
        # The same authorities as the other client, SSL_CERT_FILE included.
        is_tls = any(url.startswith("https:") for url in self.urls)
        # No proxies from the environment: the schedulers are near.
        transport = httpx.AsyncHTTPTransport(
            verify=ssl.create_default_context() if is_tls else True,
            trust_env=False,
            socket_options=KEEPALIVE,
        )
        self._http = httpx.AsyncClient(transport=transport, trust_env=False)
        self._broken = (httpx.TransportError, TimeoutError)
        self._not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
        self._limits = httpx.Timeout

    @property
    def url(self) -> str:
        """The scheduler that answered last; before the first answer, the first address."""
        return self._schedulers.current.url

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses of the client, in the given order."""
        return self._schedulers.urls

    @property
    def answered_by(self) -> AnsweredBy | None:
        """The scheduler that gave the last answer, its role, and the age of its data."""
        return self._schedulers.answered_by

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
        for request in submit_parts(map(self._described, tasks)):
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
        """Returns when all tasks have ended, in the given order. The id of an array means all of its tasks: the first
        one is returned, with the results in `array`.
        """
        until = waits.end_of(timeout_seconds)
        return [await self._wait_for(task_id, until) for task_id in task_ids]

    async def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pauses = waits.pauses()
        while True:
            task = await self.get(task_id)
            if waits.is_over(task):
                return task
            pause = next(pauses)
            waits.check_time(task, pause, until)
            await asyncio.sleep(pause)

    async def logs(self, task_id: str | int, **chosen: Unpack[OutputChoice]) -> str:
        """The output of a task as text, as far as it has been written. Bytes that are not UTF-8 become U+FFFD.

        `head` and `tail` count lines. `since` is an age like `10m` or a time. `times` puts the time before each line.
        `stream` leaves out the other stream. `grep` is a regular expression, which is searched here; the scheduler
        applies the other arguments.
        """
        pieces = [piece async for piece in self.stream_logs(task_id, **chosen)]
        return b"".join(pieces).decode(errors="replace")

    def stream_logs(
        self, task_id: str | int, *, follow: bool = False, **chosen: Unpack[OutputChoice]
    ) -> AsyncGenerator[bytes]:
        """The output in pieces of bytes as they arrive; with `follow` until the task has ended.

        A followed output that breaks continues at the same place, also at another scheduler. Further arguments as in
        `logs`.
        """
        asked = LogsQuery(follow=follow, **chosen)
        place = OutputPlace(None if asked.grep is not None else asked.tail)
        lines = None if asked.grep is None else MatchingLines(asked.grep, head=asked.head, tail=asked.tail)

        def open_stream() -> Awaitable[httpx.Response]:
            path = logs_path(task_id, asked, place.begin())
            return self._open(path, None if follow else self._timeout_seconds)

        breaks = Breaks(self._retries if follow else 0)
        pieces = self._resumed(open_stream, lambda got: _fresh(got, place), breaks, is_endless=False)
        return pieces if lines is None else matching_later(pieces, lines)

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

    async def upload(self, directory: str | os.PathLike[str], *, tenant: str | None = None) -> str:
        """Packs a project and sends it, unless the scheduler has it already. Returns its SHA-256 for `upload` of tasks.

        Files that git ignores and patterns in .dgpuignore are left out.
        """
        from dgpu.client.packing import packed

        room = await self.upload_room(tenant=tenant)
        packing = packed(directory, room.max_bytes, lambda *_: None)
        archive = await asyncio.to_thread(packing.__enter__)
        try:
            try:
                found = await self.find_upload(archive.sha256, tenant=tenant)
            except NotFound:
                found = await self._do(put_upload(archive.sha256, archive.path, tenant))
            return found.sha256
        finally:
            packing.__exit__(None, None, None)

    def _described(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = task.get("upload")
        if chosen is not None and not is_digest(chosen):
            raise BadRequest(
                f"upload: {chosen!r} is a directory. Use upload=await client.upload({chosen!r})."
            )
        return super()._described(task)

    async def download(
        self, task_id: str | int, path: str, *, attempt: int | None = None, rank: int | None = None
    ) -> AsyncIterator[bytes]:
        """One file of a task in pieces. A download that breaks continues at the same place, also at another
        scheduler. Raises Unreachable if it does not arrive completely.
        """
        place = Download(task_id, path, attempt=attempt, rank=rank)

        async def open_stream() -> httpx.Response:
            response = await self._open(place.request_path(), self._timeout_seconds)
            place.begin(response.headers.get)
            return response

        async def read(response: httpx.Response) -> AsyncIterator[bytes]:
            async for piece in response.aiter_raw():
                yield place.on_piece(piece)
            place.check_whole()

        async for piece in self._resumed(open_stream, read, Breaks(self._retries), is_endless=False):
            yield piece

    def events(self, *, after: str | None = None) -> AsyncGenerator[ServerEvent]:
        """Events from now on (or after `after`) as they happen.

        A stream that breaks continues after its last event, also at another scheduler. An event of type `lagged` means
        that some events were left out: read your data again.
        """
        parser = EventParser(after)

        def open_stream() -> Awaitable[httpx.Response]:
            return self._open("/api/v1/events", SILENCE_SECONDS, parser.begin())

        breaks = Breaks(self._retries)
        return self._resumed(open_stream, lambda got: _events(got, parser), breaks, is_endless=True)

    def board_events(self) -> AsyncGenerator[ServerEvent]:
        """The dashboard's stream: a `snapshot` of all nodes and GPUs, then a `delta` about once a second.

        A stream that breaks begins again with a `snapshot`, also at another scheduler.
        """

        def open_stream() -> Awaitable[httpx.Response]:
            return self._open("/api/v1/board/stream", SILENCE_SECONDS)

        breaks = Breaks(self._retries)
        return self._resumed(open_stream, lambda got: _events(got, EventParser()), breaks, is_endless=True)

    # The exchange

    async def _do(self, request: Request[T]) -> T:
        attempts = self._attempts(is_read=request.is_read, is_repeatable=request.is_repeatable)
        while True:
            turn = attempts.next(time.monotonic())
            try:
                response = await self._http.request(
                    request.method,
                    turn.server.url + request.path,
                    content=request.body if request.file is None else pieces_of(request.file),
                    headers=headers_of(request, await _token(turn.server)) | length_of(request.file),
                    timeout=self._limits(turn.timeout_seconds, connect=turn.connect_seconds),
                )
                answer = answer_of(response.status_code, response.content, response.headers.get)
                found = attempts.on_answer(answer, time.monotonic())
            except self._broken as error:
                found = attempts.on_failure(self._failure(error), time.monotonic())
            if isinstance(found, Answer):
                self._tell()
                return read_answer(request, found.status, found.body)
            await asyncio.sleep(found)

    def _attempts(self, *, is_read: bool, is_repeatable: bool) -> Attempts:
        return Attempts(
            self._schedulers,
            is_read=is_read,
            is_repeatable=is_repeatable,
            retries=self._retries,
            timeout_seconds=self._timeout_seconds,
            now=time.monotonic(),
        )

    def _tell(self) -> None:
        if (answered_by := self._schedulers.answered_by) is not None:
            self._on_answer(answered_by)

    async def _open(
        self, path: str, silence_seconds: float | None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """A stream that is silent for longer has broken; None: silence is normal."""
        attempts = self._attempts(is_read=True, is_repeatable=True)
        while True:
            turn = attempts.next(time.monotonic())
            response: httpx.Response | None = None
            try:
                async with asyncio.timeout(turn.timeout_seconds):
                    response = await self._begin(turn, path, silence_seconds, headers or {})
                    refusal = b"" if response.status_code == 200 else await response.aread()
                answer = answer_of(response.status_code, refusal, response.headers.get)
                found = attempts.on_answer(answer, time.monotonic())
            except self._broken as error:
                found = attempts.on_failure(self._failure(error), time.monotonic())
            if isinstance(found, Answer):
                self._tell()
                if response is not None and found is answer and found.status == 200:
                    return response
                raise failure(found.status, found.body)
            await asyncio.sleep(found)

    async def _begin(
        self, turn: Turn, path: str, silence_seconds: float | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        request = self._http.build_request(
            "GET",
            turn.server.url + path,
            headers={**headers, **bearer(await _token(turn.server)), "Accept-Encoding": "identity"},
            timeout=self._limits(turn.timeout_seconds, connect=turn.connect_seconds, read=silence_seconds),
        )
        return await self._http.send(request, stream=True)

    async def _resumed(
        self,
        open_stream: Callable[[], Awaitable[httpx.Response]],
        read: Callable[[httpx.Response], AsyncIterator[T]],
        breaks: Breaks,
        *,
        is_endless: bool,
    ) -> AsyncGenerator[T]:
        """Opens another stream after each break. An endless stream breaks also where it ends."""
        while True:
            response = await open_stream()
            breaks.on_open(time.monotonic())
            try:
                async for item in read(response):
                    breaks.on_item()
                    yield item
            except self._broken as error:
                pause = breaks.pause(time.monotonic())
                if pause is None:
                    raise _broke(response, error) from error
            else:
                pause = breaks.pause(time.monotonic()) if is_endless else None
                if pause is None:
                    return
            finally:
                await response.aclose()
            await asyncio.sleep(pause)

    def _failure(self, error: BaseException) -> Failure:
        return Failure(error, was_sent=not isinstance(error, self._not_sent), is_http=_is_http(error))


def _is_http(error: BaseException) -> bool:
    """h11 reports "illegal request line" or "illegal status line" for data that is not HTTP; other errors mean a
    broken connection.
    """
    return not str(error).startswith("illegal ")


def _broke(response: httpx.Response, error: BaseException) -> Unreachable:
    why = why_unreachable(error, is_http=_is_http(error))
    return Unreachable(f"The stream of {response.url.scheme}://{response.url.netloc.decode()} broke ({why}).")


async def _fresh(response: httpx.Response, place: OutputPlace) -> AsyncIterator[bytes]:
    async for piece in response.aiter_raw():
        if new := place.on_piece(piece):
            yield new


async def _events(response: httpx.Response, parser: EventParser) -> AsyncIterator[ServerEvent]:
    async for line in response.aiter_lines():
        event = parser.on_line(line)
        if event is not None:
            yield event


async def _token(server: Server) -> str:
    """In a thread if the identity provider may be asked."""
    return await asyncio.to_thread(token_of, server) if is_ending(server.until_s) else server.token
