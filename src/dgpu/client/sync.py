"""The client for scripts and the command line. Standard library only, so that it starts fast."""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from dgpu.client import repeats, waits
from dgpu.client.attempts import Answer, AnsweredBy, Attempts, Failure, Schedulers, Turn, answer_of
from dgpu.client.call import Blocking
from dgpu.client.calls import Calls
from dgpu.client.errors import DgpuError, NotFound
from dgpu.client.fields import Filters, OutputChoice
from dgpu.client.file_calls import Download
from dgpu.client.matching import MatchingLines, matching
from dgpu.client.renewal import token_of
from dgpu.client.request import Request, bearer, failure, headers_of, read_answer
from dgpu.client.server import locate
from dgpu.client.stream import SILENCE_SECONDS, EventParser, OutputPlace, ServerEvent
from dgpu.client.sync_stream import BROKEN, Stream, connect, is_http, read_events, read_pieces, resumed
from dgpu.client.task_calls import LogsQuery, logs_path, submit_parts
from dgpu.client.upload_calls import CountedFile, Progress, is_digest, put_upload
from dgpu.wire import answers
from dgpu.wire.file_answers import FileEntry

_BLOCK_BYTES = 256 * 1024  # of a file that is sent

T = TypeVar("T")


class Client(Calls, Blocking):
    """Calls may be made from several threads; each thread has its own connections.

    `server` is an address, several of them with commas between, or a list. Any scheduler answers reads; other calls go
    to the master. A call with a broken connection or a 503 is repeated a few times, also at the other addresses, within
    `timeout_seconds`. That cannot submit twice: every submit carries an Idempotency-Key. A call that could do something
    twice, like `create_token`, is repeated only if it was certainly not carried out.

    `waiting` is entered for each call and left with its answer, but not for streams that follow something, where
    silence is normal. `on_answer` is told which scheduler answered, `on_progress` how far an upload is.
    """

    def __init__(
        self,
        server: str | Iterable[str] | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        retries: int = repeats.RETRIES,
        clean_env: bool = False,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        on_answer: Callable[[AnsweredBy], None] = lambda _: None,
        on_progress: Progress = lambda *_: None,
    ) -> None:
        self._schedulers = Schedulers(locate(server, token))
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self.clean_env = clean_env
        self.waiting = waiting
        self._on_answer = on_answer
        self.on_progress = on_progress
        self._local = threading.local()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections of the calling thread."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Calls of several requests, and streams

    def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """Any number of tasks, sent in parts of at most 10,000 tasks or 8 MiB.

        All or nothing holds for each part. If a part is refused, the error's `submitted` names the tasks of
        the parts before it, which were accepted.
        """
        submitted: list[str] = []
        for request in submit_parts(map(self._described, tasks)):
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
        """Returns when all tasks have ended, in the given order. The id of an array means all of its tasks: the first
        one is returned, with the results in `array`.
        """
        until = waits.end_of(timeout_seconds)
        return [self._wait_for(task_id, until) for task_id in task_ids]

    def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pauses = waits.pauses()
        while True:
            task = self.get(task_id)
            if waits.is_over(task):
                return task
            pause = next(pauses)
            waits.check_time(task, pause, until)
            time.sleep(pause)

    def logs(self, task_id: str | int, **chosen: Unpack[OutputChoice]) -> str:
        """The output of a task as text, as far as it has been written. Bytes that are not UTF-8 become U+FFFD.

        `head` and `tail` count lines. `since` is an age like `10m` or a time. `times` puts the time before each line.
        `stream` leaves out the other stream. `grep` is a regular expression, which is searched here; the scheduler
        applies the other arguments.
        """
        return b"".join(self.stream_logs(task_id, **chosen)).decode(errors="replace")

    def stream_logs(
        self, task_id: str | int, *, follow: bool = False, **chosen: Unpack[OutputChoice]
    ) -> Generator[bytes, None, None]:
        """The output in pieces of bytes as they arrive; with `follow` until the task has ended.

        A followed output that breaks continues at the same place, also at another scheduler. Further arguments as in
        `logs`.
        """
        asked = LogsQuery(follow=follow, **chosen)
        place = OutputPlace(None if asked.grep is not None else asked.tail)
        lines = None if asked.grep is None else MatchingLines(asked.grep, head=asked.head, tail=asked.tail)

        def open_stream() -> Stream:
            path = logs_path(task_id, asked, place.begin())
            return self._open(path, None if follow else self._timeout_seconds, is_waited_for=not follow)

        if follow:
            pieces = place.fresh(resumed(open_stream, read_pieces, self._retries, is_endless=False))
        else:
            pieces = read_pieces(open_stream())
        return pieces if lines is None else matching(pieces, lines)

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
        """One file of a task in pieces. A download that breaks continues at the same place, also at another
        scheduler. Raises Unreachable if it does not arrive completely.
        """
        place = Download(task_id, path, attempt=attempt, rank=rank)

        def open_stream() -> Stream:
            stream = self._open(place.request_path(), self._timeout_seconds)
            place.begin(stream.response.getheader)
            return stream

        def read(stream: Stream) -> Generator[bytes, None, None]:
            yield from map(place.on_piece, read_pieces(stream))
            place.check_whole()

        return resumed(open_stream, read, self._retries, is_endless=False)

    def upload(self, directory: str | os.PathLike[str], *, tenant: str | None = None) -> str:
        """Packs a project and sends it, unless the scheduler has it already. Returns its SHA-256 for `upload` of tasks.

        Files that git ignores and patterns in .dgpuignore are left out.
        """
        from dgpu.client.packing import packed  # its imports would slow down every other use

        room = self.upload_room(tenant=tenant)
        with packed(directory, room.max_bytes, self.on_progress) as archive:
            try:
                return self.find_upload(archive.sha256, tenant=tenant).sha256
            except NotFound:
                return self._do(put_upload(archive.sha256, archive.path, tenant)).sha256

    def _described(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = task.get("upload")
        if chosen is not None and not is_digest(chosen):
            task = {**task, "upload": self.upload(chosen, tenant=task.get("tenant_id"))}
        return super()._described(task)

    def events(self, *, after: str | None = None) -> Generator[ServerEvent, None, None]:
        """Events from now on (or after `after`) as they happen.

        A stream that breaks continues after its last event, also at another scheduler. An event of type `lagged` means
        that some events were left out: read your data again.
        """
        parser = EventParser(after)

        def open_stream() -> Stream:
            return self._open("/api/v1/events", SILENCE_SECONDS, parser.begin(), is_waited_for=False)

        return resumed(
            open_stream, lambda stream: read_events(stream, parser), self._retries, is_endless=True
        )

    def board_events(self) -> Generator[ServerEvent, None, None]:
        """The dashboard's stream: a `snapshot` of all nodes and GPUs, then a `delta` about once a second.

        A stream that breaks begins again with a `snapshot`, also at another scheduler.
        """

        def open_stream() -> Stream:
            return self._open("/api/v1/board/stream", SILENCE_SECONDS, is_waited_for=False)

        return resumed(
            open_stream, lambda stream: read_events(stream, EventParser()), self._retries, is_endless=True
        )

    # The exchange

    def _do(self, request: Request[T]) -> T:
        with self.waiting():
            return self._ask(request)

    def _ask(self, request: Request[T]) -> T:
        attempts = self._attempts(is_read=request.is_read, is_repeatable=request.is_repeatable)
        while True:
            turn, was_sent = attempts.next(time.monotonic()), False
            try:
                connection = self._connection(turn, is_fresh=not request.is_repeatable)
                was_sent = True
                found = attempts.on_answer(self._exchange(connection, request, turn), time.monotonic())
            except BROKEN as error:
                lost = Failure(error, was_sent=was_sent, is_http=is_http(error))
                found = attempts.on_failure(lost, time.monotonic())
            if isinstance(found, Answer):
                self._tell()
                return read_answer(request, found.status, found.body)
            time.sleep(found)

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

    @property
    def _connections(self) -> dict[str, http.client.HTTPConnection]:
        """Of the calling thread, by address. A forked child has its own: on a shared one it would read answers to the
        requests of its parent.
        """
        found: dict[str, http.client.HTTPConnection] | None = getattr(self._local, "connections", None)
        if found is None or self._local.pid != os.getpid():
            found = self._local.connections = {}
            self._local.pid = os.getpid()
        return found

    def _connection(self, turn: Turn, *, is_fresh: bool) -> http.client.HTTPConnection:
        """`is_fresh`: not one that the scheduler may have closed meanwhile. Then a request would be lost, or not."""
        connections, url = self._connections, turn.server.url
        if is_fresh and url in connections:
            connections.pop(url).close()
        if url not in connections:
            connections[url] = connect(turn)
        connection = connections[url]
        if connection.sock is not None:
            connection.sock.settimeout(turn.timeout_seconds)
        connection.timeout = turn.timeout_seconds
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, request: Request[Any], turn: Turn) -> Answer:
        headers = headers_of(request, token_of(turn.server))
        try:
            if request.file is None:
                connection.request(request.method, request.path, request.body, headers)
            else:
                self._send_file(connection, request, request.file, headers)
            response = connection.getresponse()
            return answer_of(response.status, response.read(), response.getheader)
        except BaseException:
            # Half an answer must not be read as the start of the next one.
            connection.close()
            self._connections.pop(turn.server.url, None)
            raise

    def _send_file(
        self,
        connection: http.client.HTTPConnection,
        request: Request[Any],
        path: Path,
        headers: dict[str, str],
    ) -> None:
        connection.blocksize = _BLOCK_BYTES
        with CountedFile(path, lambda done, size: self.on_progress("sending", done, size)) as file:
            length = {"Content-Length": str(file.size_bytes)}
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # refused early: the answer says why
                connection.request(request.method, request.path, file, headers | length)

    def _open(
        self,
        path: str,
        silence_seconds: float | None,
        headers: Mapping[str, str] | None = None,
        *,
        is_waited_for: bool = True,
    ) -> Stream:
        """At the call, not at the first piece: the stream contains everything that happens after the call."""
        attempts = self._attempts(is_read=True, is_repeatable=True)
        with self.waiting() if is_waited_for else nullcontext():
            while True:
                turn = attempts.next(time.monotonic())
                stream: Stream | None = None
                try:
                    sent = {**(headers or {}), **bearer(token_of(turn.server))}
                    stream = Stream.open(turn, path, sent, silence_seconds)
                    found = attempts.on_answer(stream.answer, time.monotonic())
                except BROKEN as error:
                    lost = Failure(error, was_sent=True, is_http=is_http(error))
                    found = attempts.on_failure(lost, time.monotonic())
                if isinstance(found, Answer):
                    self._tell()
                    if stream is not None and found is stream.answer and found.status == 200:
                        return stream
                    raise failure(found.status, found.body)
                time.sleep(found)
