"""The client for scripts and the command line. Standard library only, so that it starts fast."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from dgpu.client import repeats, waits
from dgpu.client.call import Blocking
from dgpu.client.calls import Calls
from dgpu.client.errors import DgpuError, Unreachable, unreachable
from dgpu.client.fields import Filters
from dgpu.client.file_calls import download_path, whole
from dgpu.client.request import Request, bearer, failure, headers_of, read_answer
from dgpu.client.server import locate
from dgpu.client.stream import MAX_LINE_BYTES, EventParser, ServerEvent
from dgpu.client.task_calls import logs_path, submit_parts
from dgpu.wire import answers
from dgpu.wire.file_answers import FileEntry

T = TypeVar("T")

_BROKEN = (OSError, http.client.HTTPException)
_NO_HTTP = (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol)


class Client(Calls, Blocking):
    """Calls may be made from several threads; each thread has its own connection.

    A call with a broken connection or a 503 is repeated a few times. That cannot submit twice: every submit carries an
    Idempotency-Key. `waiting` is entered for each call and left with its answer, but not for streams that follow
    something, where silence is normal.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        retries: int = repeats.RETRIES,
        repeats_timeouts: bool = True,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._server = locate(server, token)
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._repeats_timeouts = repeats_timeouts
        self.waiting = waiting
        self._local = threading.local()

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection of the calling thread."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    # Calls of several requests, and streams

    def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """Any number of tasks, sent in parts of at most 10,000 tasks or 8 MiB.

        All or nothing holds for each part. If a part is refused, the error's `submitted` names the tasks of
        the parts before it, which were accepted.
        """
        submitted: list[str] = []
        for request in submit_parts(tasks):
            try:
                submitted += self._do(request).task_ids
            except DgpuError as error:
                error.submitted = submitted
                raise
        return submitted

    def list(self, *, page_size: int = 500, **filters: Unpack[Filters]) -> Iterator[answers.TaskAnswer]:
        """Newest first; pages are requested as they are read."""
        cursor: str | None = None
        while True:
            page = self.page(limit=page_size, cursor=cursor, **filters)
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def wait(
        self, *task_ids: str | int, timeout_seconds: float | None = None
    ) -> Sequence[answers.TaskAnswer]:
        """Returns when all tasks have ended, in the given order."""
        until = waits.end_of(timeout_seconds)
        return [self._wait_for(task_id, until) for task_id in task_ids]

    def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pauses = waits.pauses()
        while True:
            task = self.get(task_id)
            if task.status in waits.FINAL:
                return task
            pause = next(pauses)
            waits.check_time(task, pause, until)
            time.sleep(pause)

    def logs(
        self,
        task_id: str | int,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Generator[bytes, None, None]:
        """The output in pieces as they arrive; with `follow` until the task has ended."""
        path = logs_path(task_id, follow=follow, tail=tail, attempt=attempt, rank=rank)
        return _pieces(_Stream(self, path, endless=follow).open())

    def files(
        self, task_id: str | int, path: str = "", *, attempt: int | None = None, rank: int | None = None
    ) -> Iterator[FileEntry]:
        """All entries of one directory; pages are requested as they are read."""
        cursor: str | None = None
        while True:
            found = self.file_page(task_id, path, cursor=cursor, attempt=attempt, rank=rank)
            yield from found.files
            cursor = found.next_cursor
            if cursor is None:
                return

    def download(
        self, task_id: str | int, path: str, *, attempt: int | None = None, rank: int | None = None
    ) -> Generator[bytes, None, None]:
        """One file of a task in pieces. Raises Unreachable if it does not arrive completely."""
        asked = download_path(task_id, path, attempt=attempt, rank=rank)
        stream = _Stream(self, asked, endless=False).open()
        return whole(_pieces(stream), stream.response.length)

    def events(self, *, after: str | None = None) -> Generator[ServerEvent, None, None]:
        """Events from now on (or after `after`) as they happen, until the connection ends.

        An event of type `lagged` means that some events were left out: read your data again.
        """
        headers = {"Last-Event-ID": after} if after else {}
        return _events(_Stream(self, "/api/v1/events", endless=True, headers=headers).open())

    def board_events(self) -> Generator[ServerEvent, None, None]:
        """The dashboard's stream: a `snapshot` of all nodes and GPUs, then a `delta` about once a second."""
        return _events(_Stream(self, "/api/v1/board/stream", endless=True, headers={}).open())

    # The exchange

    def _do(self, request: Request[T]) -> T:
        with self.waiting():
            return self._ask(request)

    def _ask(self, request: Request[T]) -> T:
        headers = headers_of(request, self._server.token)
        pauses = repeats.pauses(self._retries)
        while True:
            try:
                status, body, retry_after = self._exchange(request, headers)
            except _BROKEN as error:
                is_repeated = self._repeats_timeouts or not isinstance(error, TimeoutError)
                pause = next(pauses, None) if is_repeated else None
                if pause is None:
                    raise self.unreachable(error) from error
            else:
                pause = repeats.pause_before_repeat(status, body, retry_after, pauses)
                if pause is None:
                    return read_answer(request, status, body)
            time.sleep(pause)

    def _exchange(self, request: Request[Any], headers: dict[str, str]) -> tuple[int, bytes, str | None]:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self.connect(self._timeout_seconds)
            self._local.connection = connection
        try:
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            return response.status, response.read(), response.getheader("Retry-After")
        except BaseException:
            # Half an answer must not be read as the start of the next one.
            self.close()
            raise

    def connect(self, timeout_seconds: float | None) -> http.client.HTTPConnection:
        parts = urlsplit(self._server.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_seconds)

    def unreachable(self, error: BaseException) -> Unreachable:
        silent = isinstance(error, http.client.RemoteDisconnected)  # a subclass of BadStatusLine, too
        return unreachable(self._server.url, error, is_http=silent or not isinstance(error, _NO_HTTP))


class _Stream:
    """A response that is read while it arrives, on its own connection."""

    def __init__(
        self, client: Client, path: str, *, endless: bool, headers: Mapping[str, str] | None = None
    ) -> None:
        # Endless streams send heartbeats every few seconds, so silence means a dead connection.
        self._connection = client.connect(None if endless else client._timeout_seconds)  # noqa: SLF001
        self._client = client
        self._waiting = nullcontext() if endless else client.waiting()
        self._path = path
        self._headers = {**(headers or {}), **bearer(client._server.token)}  # noqa: SLF001

    def open(self) -> Self:
        """Opens at the call, not at the first piece: the stream contains everything that happens after the call."""
        try:
            with self._waiting:
                self._connection.request("GET", self._path, headers=self._headers)
                self.response = self._connection.getresponse()
            failed = self.response.read() if self.response.status != 200 else None
        except _BROKEN as error:
            self._connection.close()
            raise self._client.unreachable(error) from error
        if failed is not None:
            self._connection.close()
            raise failure(self.response.status, failed)
        return self

    def __enter__(self) -> http.client.HTTPResponse:
        return self.response

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if isinstance(error, _BROKEN):
            raise self._client.unreachable(error) from error


def _pieces(stream: _Stream) -> Generator[bytes, None, None]:
    with stream as response:
        while piece := response.read1(65_536):
            yield piece


def _events(stream: _Stream) -> Generator[ServerEvent, None, None]:
    parser = EventParser()
    with stream as response:
        while line := response.readline(MAX_LINE_BYTES):
            event = parser.on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
            if event is not None:
                yield event
