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

from dgpu.client import calls, repeats
from dgpu.client.alerts import AlertCalls
from dgpu.client.calls import Call, Filters, QuotaFields, TaskFields, TenantFields
from dgpu.client.errors import DgpuError, Unreachable, WaitedTooLong, unreachable
from dgpu.client.files import FileCalls, download_path, whole
from dgpu.client.history import PastCalls
from dgpu.client.server import locate
from dgpu.client.stream import MAX_LINE_BYTES, EventParser, ServerEvent
from dgpu.wire import answers

T = TypeVar("T")

_BROKEN = (OSError, http.client.HTTPException)
_NO_HTTP = (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol)
_FIRST_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.5


class Client(PastCalls, AlertCalls, FileCalls):
    """Calls may be made from several threads; each thread has a connection of its own.

    A call that meets a broken connection or a 503 is repeated a few times. That cannot submit twice: every
    submit carries an Idempotency-Key. `waiting` is entered for each of them and left with its answer; not for streams
    that follow something, where silence means nothing.
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

    # tasks

    def submit(self, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]) -> answers.Submitted:
        return self._do(calls.submit(task, idempotency_key))

    def submit_copies(
        self, count: int, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]
    ) -> list[str]:
        """`count` equal tasks, all or nothing; at most 10,000."""
        return self._do(calls.submit_copies(task, count, idempotency_key)).task_ids

    def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """Any number of tasks, sent in parts of at most 10,000 tasks or 8 MiB.

        All or nothing holds for each part. If a part is refused, the error's `submitted` names the tasks of
        the parts before it, which were accepted.
        """
        submitted: list[str] = []
        for call in calls.submit_parts(tasks):
            try:
                submitted += self._do(call).task_ids
            except DgpuError as error:
                error.submitted = submitted
                raise
        return submitted

    def get(self, task_id: str | int) -> answers.TaskAnswer:
        return self._do(calls.get(task_id))

    def page(
        self, *, limit: int = 100, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> answers.TaskPage:
        return self._do(calls.page(filters, limit, cursor))

    def list(self, *, page_size: int = 500, **filters: Unpack[Filters]) -> Iterator[answers.TaskAnswer]:
        """Newest first, page by page as it is read."""
        cursor: str | None = None
        while True:
            page = self.page(limit=page_size, cursor=cursor, **filters)
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def cancel(self, *task_ids: str | int) -> int:
        return self._do(calls.cancel(task_ids)).cancelled

    def cancel_where(self, **filters: Unpack[Filters]) -> int:
        return self._do(calls.cancel_where(filters)).cancelled

    def hold(self, task_id: str | int, *, array: bool = False) -> answers.TaskAnswer:
        """A waiting task is not started before it is released. With `array`, all that wait of the array it begins."""
        return self._do(calls.task_order(task_id, "hold", array=array))

    def release(self, task_id: str | int, *, array: bool = False) -> answers.TaskAnswer:
        return self._do(calls.task_order(task_id, "release", array=array))

    def retry(self, task_id: str | int, *, idempotency_key: str | None = None) -> answers.Retried:
        """Submits a task that is over once more, as a new task with the same environment."""
        return self._do(calls.retry(task_id, idempotency_key))

    def set_priority(
        self, task_id: str | int, priority: int | str, *, array: bool = False
    ) -> answers.TaskAnswer:
        """Of a waiting task."""
        return self._do(calls.set_priority(task_id, priority, array=array))

    def why(self, task_id: str | int) -> answers.Why:
        return self._do(calls.why(task_id))

    def whatif(self, change: Mapping[str, Any]) -> answers.WhatifAnswer:
        """What would happen, without doing it: `{"submit": {...}}`, `{"quota": {"online_percent": 0.6}}`,
        `{"drain": node}`, `{"lose": node}` or `{"add_nodes": [{"gpus": 8, "model": "A100"}]}`.
        """
        return self._do(calls.whatif(change))

    def task_events(self, task_id: str | int) -> Sequence[answers.TaskEvent]:
        return self._do(calls.task_events(task_id)).events

    def wait(
        self, *task_ids: str | int, timeout_seconds: float | None = None
    ) -> Sequence[answers.TaskAnswer]:
        """Returns when all are over, in the order asked for."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return [self._wait_for(task_id, until) for task_id in task_ids]

    def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pause = _FIRST_POLL_SECONDS
        while True:
            task = self.get(task_id)
            if task.status in calls.FINAL:
                return task
            if until is not None and time.monotonic() + pause > until:
                raise WaitedTooLong(f"{task.task_id} is still {task.status}.")
            time.sleep(pause)
            pause = min(_LONGEST_POLL_SECONDS, pause * 1.5)

    def logs(
        self,
        task_id: str | int,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Generator[bytes, None, None]:
        """The output in pieces as they come; with `follow` until the task is over."""
        path = calls.logs_path(task_id, follow=follow, tail=tail, attempt=attempt, rank=rank)
        return _pieces(_Stream(self, path, endless=follow).open())

    def download(
        self, task_id: str | int, path: str, *, attempt: int | None = None, rank: int | None = None
    ) -> Generator[bytes, None, None]:
        """One file of a task in pieces. Raises Unreachable when it does not come whole."""
        asked = download_path(task_id, path, attempt=attempt, rank=rank)
        stream = _Stream(self, asked, endless=False).open()
        return whole(_pieces(stream), stream.response.length)

    # cluster

    def queue(self, *, limit: int = 100) -> answers.QueuePage:
        return self._do(calls.queue(limit))

    def estimates(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        task_type: str | None = None,
        atoms: int | None = None,
    ) -> answers.EstimateList:
        """What is known about the memory of models and commands; with a model, type or atoms, what it would need."""
        return self._do(calls.estimates(tenant, model, task_type, atoms))

    def gpus(self) -> answers.GpuList:
        return self._do(calls.gpus())

    def recover_gpu(self, gpu_id: str, *, reason: str = "") -> answers.GpuAnswer:
        """Has a card checked that was taken out of service, after somebody looked after it."""
        return self._do(calls.recover_gpu(gpu_id, reason))

    def nodes(self) -> answers.NodeList:
        return self._do(calls.nodes())

    def drain(self, node_id: str, *, reason: str = "") -> answers.NodeAnswer:
        return self._do(calls.node_order(node_id, "drain", reason))

    def resume(self, node_id: str) -> answers.NodeAnswer:
        return self._do(calls.node_order(node_id, "resume"))

    def give_up(self, node_id: str, *, reason: str = "") -> answers.NodeAnswer:
        """Says that nothing runs on a lost node any more, so that its tasks can start elsewhere."""
        return self._do(calls.node_order(node_id, "lost", reason))

    def remove_node(self, node_id: str) -> None:
        self._do(calls.remove_node(node_id))

    def quota(self) -> answers.QuotaAnswer:
        return self._do(calls.quota())

    def set_quota(self, **change: Unpack[QuotaFields]) -> answers.QuotaAnswer:
        return self._do(calls.set_quota(change))

    def try_quota(self, **change: Unpack[QuotaFields]) -> answers.QuotaEffect:
        """Changes nothing: tells who would start, wait, drain or be stopped."""
        return self._do(calls.try_quota(change))

    def tenants(self) -> Sequence[answers.TenantAnswer]:
        return self._do(calls.tenants()).tenants

    def tenant(self, tenant_id: str) -> answers.TenantAnswer:
        return self._do(calls.tenant(tenant_id))

    def create_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> answers.TenantAnswer:
        """Refused if there is one of that name."""
        return self._do(calls.create_tenant(tenant_id, limits))

    def set_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> answers.TenantAnswer:
        """All of its limits; sets it up if there is none of that name."""
        return self._do(calls.set_tenant(tenant_id, limits))

    def remove_tenant(self, tenant_id: str) -> None:
        self._do(calls.remove_tenant(tenant_id))

    def board(self) -> Mapping[str, Any]:
        """The cluster at a glance, as dashboards get it: see the API's description."""
        return self._do(calls.board())

    def session(self) -> answers.SessionAnswer:
        return self._do(calls.session())

    def session_code(self) -> answers.SessionCode:
        """Opens the dashboard of somebody else's browser, once."""
        return self._do(calls.session_code())

    def health(self) -> answers.Health:
        return self._do(calls.health())

    def ready(self) -> answers.Ready:
        return self._do(calls.ready())

    def events(self, *, after: str | None = None) -> Generator[ServerEvent, None, None]:
        """All events from now on (or behind `after`) as they happen, until the connection ends.

        An event of type `lagged` means: some were left out, read again what you keep.
        """
        headers = {"Last-Event-ID": after} if after else {}
        return _events(_Stream(self, "/api/v1/events", endless=True, headers=headers).open())

    def board_events(self) -> Generator[ServerEvent, None, None]:
        """The dashboard's stream: a `snapshot` of all nodes and GPUs, then a `delta` about once a second."""
        return _events(_Stream(self, "/api/v1/board/stream", endless=True, headers={}).open())

    # the exchange

    def _do(self, call: Call[T]) -> T:
        with self.waiting():
            return self._ask(call)

    def _ask(self, call: Call[T]) -> T:
        headers = calls.headers_of(call, self._server.token)
        pauses = repeats.pauses(self._retries)
        while True:
            try:
                status, body, retry_after = self._exchange(call, headers)
            except _BROKEN as error:
                is_repeated = self._repeats_timeouts or not isinstance(error, TimeoutError)
                pause = next(pauses, None) if is_repeated else None
                if pause is None:
                    raise self.unreachable(error) from error
            else:
                pause = repeats.pause_before_repeat(status, body, retry_after, pauses)
                if pause is None:
                    return calls.parse(call, status, body)
            time.sleep(pause)

    def _exchange(self, call: Call[Any], headers: dict[str, str]) -> tuple[int, bytes, str | None]:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self.connect(self._timeout_seconds)
            self._local.connection = connection
        try:
            connection.request(call.method, call.path, call.body, headers)
            response = connection.getresponse()
            return response.status, response.read(), response.getheader("Retry-After")
        except BaseException:
            # half an answer must not be taken for the start of the next one
            self.close()
            raise

    def connect(self, timeout_seconds: float | None) -> http.client.HTTPConnection:
        parts = urlsplit(self._server.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_seconds)

    def unreachable(self, error: BaseException) -> Unreachable:
        silent = isinstance(error, http.client.RemoteDisconnected)  # by its kind a bad status line too
        return unreachable(self._server.url, error, is_http=silent or not isinstance(error, _NO_HTTP))


class _Stream:
    """A response that is read while it comes, on a connection of its own."""

    def __init__(
        self, client: Client, path: str, *, endless: bool, headers: Mapping[str, str] | None = None
    ) -> None:
        # heartbeats come every few seconds on endless streams, so silence means a dead connection
        self._connection = client.connect(None if endless else client._timeout_seconds)  # noqa: SLF001
        self._client = client
        self._waiting = nullcontext() if endless else client.waiting()
        self._path = path
        self._headers = {**(headers or {}), **calls.bearer(client._server.token)}  # noqa: SLF001

    def open(self) -> Self:
        """At the call, not at the first piece: what happens after it is in the stream."""
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
            raise calls.failure(self.response.status, failed)
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
