"""The client for services. Needs httpx, which is imported when the first client is made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from dgpu.client import calls, repeats
from dgpu.client.alerts import AsyncAlertCalls
from dgpu.client.calls import Call, Filters, QuotaFields, TaskFields, TenantFields
from dgpu.client.errors import DgpuError, Unreachable, WaitedTooLong, unreachable
from dgpu.client.files import AsyncFileCalls, check_whole, download_path
from dgpu.client.history import AsyncPastCalls
from dgpu.client.server import locate
from dgpu.client.stream import EventParser, ServerEvent
from dgpu.wire import answers

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_FIRST_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.5


class AsyncClient(AsyncPastCalls, AsyncAlertCalls, AsyncFileCalls):
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
        # no proxies from the environment: the scheduler is near
        self._http = httpx.AsyncClient(base_url=self._server.url, timeout=timeout_seconds, trust_env=False)
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
        await self._http.aclose()

    # tasks

    async def submit(
        self, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]
    ) -> answers.Submitted:
        return await self._do(calls.submit(task, idempotency_key))

    async def submit_copies(
        self, count: int, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]
    ) -> list[str]:
        """`count` equal tasks, all or nothing; at most 10,000."""
        return (await self._do(calls.submit_copies(task, count, idempotency_key))).task_ids

    async def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
        """In parts of at most 10,000 tasks or 8 MiB. All or nothing holds for each part; the error's
        `submitted` names the tasks of the parts before it.
        """
        submitted: list[str] = []
        for call in calls.submit_parts(tasks):
            try:
                submitted += (await self._do(call)).task_ids
            except DgpuError as error:
                error.submitted = submitted
                raise
        return submitted

    async def get(self, task_id: str | int) -> answers.TaskAnswer:
        return await self._do(calls.get(task_id))

    async def page(
        self, *, limit: int = 100, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> answers.TaskPage:
        return await self._do(calls.page(filters, limit, cursor))

    async def list(
        self, *, page_size: int = 500, **filters: Unpack[Filters]
    ) -> AsyncIterator[answers.TaskAnswer]:
        """Newest first, page by page as it is read."""
        cursor: str | None = None
        while True:
            page = await self.page(limit=page_size, cursor=cursor, **filters)
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def cancel(self, *task_ids: str | int) -> int:
        return (await self._do(calls.cancel(task_ids))).cancelled

    async def cancel_where(self, **filters: Unpack[Filters]) -> int:
        return (await self._do(calls.cancel_where(filters))).cancelled

    async def hold(self, task_id: str | int, *, array: bool = False) -> answers.TaskAnswer:
        """A waiting task is not started before it is released. With `array`, all that wait of the array it begins."""
        return await self._do(calls.task_order(task_id, "hold", array=array))

    async def release(self, task_id: str | int, *, array: bool = False) -> answers.TaskAnswer:
        return await self._do(calls.task_order(task_id, "release", array=array))

    async def retry(self, task_id: str | int, *, idempotency_key: str | None = None) -> answers.Retried:
        """Submits a task that is over once more, as a new task with the same environment."""
        return await self._do(calls.retry(task_id, idempotency_key))

    async def set_priority(
        self, task_id: str | int, priority: int | str, *, array: bool = False
    ) -> answers.TaskAnswer:
        """Of a waiting task."""
        return await self._do(calls.set_priority(task_id, priority, array=array))

    async def why(self, task_id: str | int) -> answers.Why:
        return await self._do(calls.why(task_id))

    async def whatif(self, change: Mapping[str, Any]) -> answers.WhatifAnswer:
        """What would happen, without doing it: `{"submit": {...}}`, `{"quota": {"online_percent": 0.6}}`,
        `{"drain": node}`, `{"lose": node}` or `{"add_nodes": [{"gpus": 8, "model": "A100"}]}`.
        """
        return await self._do(calls.whatif(change))

    async def task_events(self, task_id: str | int) -> Sequence[answers.TaskEvent]:
        return (await self._do(calls.task_events(task_id))).events

    async def wait(
        self, *task_ids: str | int, timeout_seconds: float | None = None
    ) -> Sequence[answers.TaskAnswer]:
        """Returns when all are over, in the order asked for."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return [await self._wait_for(task_id, until) for task_id in task_ids]

    async def _wait_for(self, task_id: str | int, until: float | None) -> answers.TaskAnswer:
        pause = _FIRST_POLL_SECONDS
        while True:
            task = await self.get(task_id)
            if task.status in calls.FINAL:
                return task
            if until is not None and time.monotonic() + pause > until:
                raise WaitedTooLong(f"{task.task_id} is still {task.status}.")
            await asyncio.sleep(pause)
            pause = min(_LONGEST_POLL_SECONDS, pause * 1.5)

    async def logs(
        self,
        task_id: str | int,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The output in pieces as they come; with `follow` until the task is over."""
        path = calls.logs_path(task_id, follow=follow, tail=tail, attempt=attempt, rank=rank)
        async with self._stream(path) as response:
            async for piece in response.aiter_raw():
                yield piece

    async def download(
        self, task_id: str | int, path: str, *, attempt: int | None = None, rank: int | None = None
    ) -> AsyncIterator[bytes]:
        """One file of a task in pieces. Raises Unreachable when it does not come whole."""
        asked = download_path(task_id, path, attempt=attempt, rank=rank)
        got = 0
        async with self._stream(asked) as response:
            size = response.headers.get("content-length")
            async for piece in response.aiter_raw():
                got += len(piece)
                yield piece
        check_whole(got, None if size is None else int(size))

    # cluster

    async def queue(self, *, limit: int = 100) -> answers.QueuePage:
        return await self._do(calls.queue(limit))

    async def estimates(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        task_type: str | None = None,
        atoms: int | None = None,
    ) -> answers.EstimateList:
        """What is known about the memory of models and commands; with a model, type or atoms, what it would need."""
        return await self._do(calls.estimates(tenant, model, task_type, atoms))

    async def gpus(self) -> answers.GpuList:
        return await self._do(calls.gpus())

    async def recover_gpu(self, gpu_id: str, *, reason: str = "") -> answers.GpuAnswer:
        """Has a card checked that was taken out of service, after somebody looked after it."""
        return await self._do(calls.recover_gpu(gpu_id, reason))

    async def nodes(self) -> answers.NodeList:
        return await self._do(calls.nodes())

    async def drain(self, node_id: str, *, reason: str = "") -> answers.NodeAnswer:
        return await self._do(calls.node_order(node_id, "drain", reason))

    async def resume(self, node_id: str) -> answers.NodeAnswer:
        return await self._do(calls.node_order(node_id, "resume"))

    async def give_up(self, node_id: str, *, reason: str = "") -> answers.NodeAnswer:
        """Says that nothing runs on a lost node any more, so that its tasks can start elsewhere."""
        return await self._do(calls.node_order(node_id, "lost", reason))

    async def remove_node(self, node_id: str) -> None:
        await self._do(calls.remove_node(node_id))

    async def quota(self) -> answers.QuotaAnswer:
        return await self._do(calls.quota())

    async def set_quota(self, **change: Unpack[QuotaFields]) -> answers.QuotaAnswer:
        return await self._do(calls.set_quota(change))

    async def try_quota(self, **change: Unpack[QuotaFields]) -> answers.QuotaEffect:
        """Changes nothing: tells who would start, wait, drain or be stopped."""
        return await self._do(calls.try_quota(change))

    async def tenants(self) -> Sequence[answers.TenantAnswer]:
        return (await self._do(calls.tenants())).tenants

    async def tenant(self, tenant_id: str) -> answers.TenantAnswer:
        return await self._do(calls.tenant(tenant_id))

    async def create_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> answers.TenantAnswer:
        """Refused if there is one of that name."""
        return await self._do(calls.create_tenant(tenant_id, limits))

    async def set_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> answers.TenantAnswer:
        """All of its limits; sets it up if there is none of that name."""
        return await self._do(calls.set_tenant(tenant_id, limits))

    async def remove_tenant(self, tenant_id: str) -> None:
        await self._do(calls.remove_tenant(tenant_id))

    async def board(self) -> Mapping[str, Any]:
        """The cluster at a glance, as dashboards get it: see the API's description."""
        return await self._do(calls.board())

    async def session(self) -> answers.SessionAnswer:
        return await self._do(calls.session())

    async def session_code(self) -> answers.SessionCode:
        """Opens the dashboard of somebody else's browser, once."""
        return await self._do(calls.session_code())

    async def health(self) -> answers.Health:
        return await self._do(calls.health())

    async def ready(self) -> answers.Ready:
        return await self._do(calls.ready())

    async def events(self, *, after: str | None = None) -> AsyncIterator[ServerEvent]:
        """All events as they happen, until the connection ends; `lagged` means: read again what you keep."""
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

    # the exchange

    async def _do(self, call: Call[T]) -> T:
        headers = calls.headers_of(call, self._server.token)
        pauses = repeats.pauses(self._retries)
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, content=call.body, headers=headers
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
                    return calls.parse(call, status, body)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _stream(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        sent = {**(headers or {}), **calls.bearer(self._server.token), "Accept-Encoding": "identity"}
        try:
            async with self._http.stream("GET", path, headers=sent, timeout=self._no_timeout) as response:
                if response.status_code != 200:
                    raise calls.failure(response.status_code, await response.aread())
                yield response
        except self._broken as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> Unreachable:
        # h11 says "illegal request line" or "illegal status line" of what is no HTTP; all else is a broken connection
        is_http = not str(error).startswith("illegal ")
        return unreachable(self._server.url, error, is_http=is_http)
