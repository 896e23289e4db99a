"""`map`: many calls of one function, submitted in batches, with their results as they come."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dgpu.client.errors import DgpuError
from dgpu.functions import values
from dgpu.functions.code import described
from dgpu.functions.errors import RemoteError, error_of, expired, has_value, unless_expired
from dgpu.functions.patience import patiently, patiently_async
from dgpu.wire.call_answers import CallResult

if TYPE_CHECKING:
    from dgpu.client.asynchronous import AsyncClient
    from dgpu.client.sync import Client
    from dgpu.functions.declare import Function
    from dgpu.functions.session import Session

# The first batches are small, so that the first results come soon.
_FIRST_BATCH: Final = 16
_MAX_BATCH: Final = 500
_MAX_BATCH_BYTES: Final = 4 << 20
_MAX_ASKED: Final = 1_000
# With many calls on their way, results are fetched this often and not one by one.
_PAUSE_SECONDS: Final = 0.01
_MANY: Final = 64


class MapOptions(NamedTuple):
    ordered: bool = True
    progress: bool | None = None
    return_exceptions: bool = False
    in_flight: int = 2_000


class Batch(NamedTuple):
    """Arguments to submit: several small ones, or one large one."""

    small: list[str]
    large: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.small) if self.large is None else 1


class MapMachine:
    """Which call comes next, which results are ready. No I/O."""

    def __init__(
        self, items: Iterable[Sequence[Any]], kwargs: Mapping[str, Any], options: MapOptions
    ) -> None:
        if options.in_flight < 1:
            raise ValueError(f"in_flight is {options.in_flight}, expected at least 1")
        self._items = iter(items)
        self._kwargs = kwargs
        self._options = options
        self._is_read = False
        self._held: bytes | None = None  # read, but too large for its batch
        self._batch = _FIRST_BATCH
        self._submitted = 0
        self._yielded = 0
        self._numbers: dict[str, int] = {}  # of calls that have not ended
        self._ended: dict[int, Any] = {}  # values and exceptions, ordered
        self._ready: deque[Any] = deque()

    @property
    def is_over(self) -> bool:
        return self._is_read and self._held is None and not self._numbers and not self._ready

    @property
    def done(self) -> int:
        return self._submitted - len(self._numbers)

    @property
    def total(self) -> int | None:
        return self._submitted if self._is_read and self._held is None else None

    @property
    def outstanding(self) -> list[str]:
        return list(self._numbers)

    @property
    def asked(self) -> list[str]:
        """The oldest calls: workers run them first."""
        return list(self._numbers)[:_MAX_ASKED]

    @property
    def is_many(self) -> bool:
        return len(self._numbers) > _MANY

    def next_batch(self) -> Batch | None:
        """None: nothing to submit now. Results that wait for an earlier one count as in flight: they take memory."""
        room = self._options.in_flight - (self._submitted - self._yielded)
        size = min(self._batch, self._options.in_flight)
        if (self._is_read and self._held is None) or (room < size and self._numbers):
            return None
        small: list[str] = []
        bytes_so_far = 0
        while len(small) < min(size, max(room, 1)):
            body = self._next_body()
            if body is None:
                break
            if values.is_large(body) or bytes_so_far + len(body) > _MAX_BATCH_BYTES:
                if not small:
                    return Batch([], body)
                self._held = body
                break
            bytes_so_far += len(body)
            small.append(values.inline(body))
        self._batch = min(self._batch * 2, _MAX_BATCH)
        return Batch(small) if small else None

    def on_submitted(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self._numbers[task_id] = self._submitted
            self._submitted += 1

    def on_ended(self, task_id: str, value: Any) -> None:
        number = self._numbers.pop(task_id, None)
        if number is None:
            return
        if not self._options.ordered:
            self._ready.append(value)
            return
        self._ended[number] = value
        while self._yielded + len(self._ready) in self._ended:
            self._ready.append(self._ended.pop(self._yielded + len(self._ready)))

    def ready(self) -> Iterator[Any]:
        """Raises the exception of a failed call in its place."""
        while self._ready:
            value = self._ready.popleft()
            self._yielded += 1
            if isinstance(value, RemoteError) and not self._options.return_exceptions:
                raise value
            yield value

    def _next_body(self) -> bytes | None:
        if self._held is not None:
            body, self._held = self._held, None
            return body
        if self._is_read:
            return None
        try:
            args = next(self._items)
        except StopIteration:
            self._is_read = True
            return None
        return values.packed_arguments(args, self._kwargs)


def mapped(
    session: Session,
    function: Function[Any],
    items: Iterable[Sequence[Any]],
    kwargs: Mapping[str, Any],
    options: MapOptions,
) -> Iterator[Any]:
    machine, client = MapMachine(items, kwargs, options), session.client
    task = described(session, function)
    shown = _Line(function.local.__name__, options.progress)
    try:
        while not machine.is_over:
            batch = machine.next_batch()
            if batch is not None:
                machine.on_submitted(_submit(session, task, batch))
            elif machine.is_many:
                time.sleep(_PAUSE_SECONDS)
            if asked := machine.asked:
                wait = 0.0 if batch is not None else session.wait_seconds
                for ended in _results(client, asked, wait):
                    machine.on_ended(ended.task_id, _outcome(ended, _content(client, ended)))
            shown.show(machine.done, machine.total)
            yield from machine.ready()
    finally:
        shown.clear()
        if left := machine.outstanding:
            with contextlib.suppress(DgpuError):
                client.cancel(*left)


async def mapped_async(
    session: Session,
    function: Function[Any],
    items: Iterable[Sequence[Any]],
    kwargs: Mapping[str, Any],
    options: MapOptions,
) -> AsyncIterator[Any]:
    machine, client = MapMachine(items, kwargs, options), session.async_client
    task = await asyncio.to_thread(described, session, function)
    try:
        while not machine.is_over:
            batch = machine.next_batch()
            if batch is not None:
                await _submit_in_thread(machine, session, task, batch)
            elif machine.is_many:
                await asyncio.sleep(_PAUSE_SECONDS)
            if asked := machine.asked:
                wait = 0.0 if batch is not None else session.wait_seconds
                for ended in await _results_async(client, asked, wait):
                    machine.on_ended(ended.task_id, _outcome(ended, await _content_async(client, ended)))
            for value in machine.ready():
                yield value
    finally:
        if left := machine.outstanding:
            with contextlib.suppress(DgpuError):
                await client.cancel(*left)


async def _submit_in_thread(
    machine: MapMachine, session: Session, task: Mapping[str, Any], batch: Batch
) -> None:
    """Few requests, each for many calls: a thread per batch costs less than a second form of submit."""
    submitting = asyncio.ensure_future(asyncio.to_thread(_submit, session, task, batch))
    try:
        machine.on_submitted(await asyncio.shield(submitting))
    except asyncio.CancelledError:
        # A thread cannot be cancelled: its calls must be known, so that they are cancelled.
        with contextlib.suppress(DgpuError):
            machine.on_submitted(await submitting)
        raise


def _submit(session: Session, task: Mapping[str, Any], batch: Batch) -> list[str]:
    client, large = session.client, batch.large
    key = secrets.token_hex(16)  # a repeated submit finds the first one
    if large is None:
        return list(patiently(client, lambda: client.submit_calls(task, batch.small, idempotency_key=key)))
    ref = patiently(client, lambda: client.put_content(large, tenant=task.get("tenant_id")))
    return [patiently(client, lambda: client.submit(idempotency_key=key, **task, args_ref=ref)).task_id]


def _results(client: Client, asked: Sequence[str], wait: float) -> Sequence[CallResult]:
    return patiently(client, lambda: client.results(asked, wait=wait)).results


async def _results_async(client: AsyncClient, asked: Sequence[str], wait: float) -> Sequence[CallResult]:
    return (await patiently_async(client, lambda: client.results(asked, wait=wait))).results


def _content(client: Client, ended: CallResult) -> bytes | None:
    """Of a large result; None: it is not large, or not kept any more."""
    if not ended.ref:
        return None
    with unless_expired():
        return patiently(client, lambda: client.result_content(ended.task_id))
    return None


async def _content_async(client: AsyncClient, ended: CallResult) -> bytes | None:
    if not ended.ref:
        return None
    with unless_expired():
        return await patiently_async(client, lambda: client.result_content(ended.task_id))
    return None


def _outcome(ended: CallResult, content: bytes | None) -> Any:
    if not has_value(ended):
        return error_of(ended)
    if not ended.ref:
        return values.value_of(ended)
    return expired(ended.task_id) if content is None else values.unpacked(content)


class _Line:
    """How far a map is, on a terminal."""

    def __init__(self, name: str, progress: bool | None) -> None:
        self._name = name
        self._is_shown = sys.stderr.isatty() if progress is None else progress
        self._next_at = 0.0
        self._width = 0

    def show(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if not self._is_shown or (now < self._next_at and done != total):
            return
        self._next_at = now + 0.1
        line = (
            f"{self._name}: {done:,} done" if total is None else f"{self._name}: {done:,} of {total:,} done"
        )
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
