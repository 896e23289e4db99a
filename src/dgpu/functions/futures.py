"""Submitted calls, as objects that can be waited for."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dgpu.client.errors import DgpuError, Unreachable
from dgpu.functions import values
from dgpu.functions.code import described
from dgpu.functions.errors import EXPIRED, RemoteError, error_of, expired, has_value, unless_expired
from dgpu.functions.patience import patiently, patiently_async
from dgpu.wire.call_answers import CallResult

if TYPE_CHECKING:
    from dgpu.functions.declare import Function
    from dgpu.functions.session import Session

R = TypeVar("R")
_ENDED = frozenset({"success", "failed", "cancelled"})
_MAX_ASKED = 1_000
_TURN_SECONDS = 1.0  # with more calls than one question may name


class Future(Generic[R]):
    """A submitted call. It lives in the cluster: this object may be dropped, `Future(task_id)` finds it again."""

    def __init__(self, task_id: str, session: Session | None = None) -> None:
        from dgpu.functions.session import default_session

        self.task_id = task_id
        self._session = session or default_session()
        self._ended: CallResult | None = None
        self._value: Any = None
        self._error: RemoteError | None = None

    def result(self, timeout: float | None = None) -> R:
        """The value, or the exception of the function. TimeoutError if it has not ended after `timeout` seconds."""
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def exception(self, timeout: float | None = None) -> RemoteError | None:
        """The exception of the function, or None if it returned."""
        self._wait(timeout)
        return self._error

    def done(self) -> bool:
        """Whether the call has ended. Asks the scheduler."""
        if self._ended is None:
            self._take(self._ask(0.0))
        return self._ended is not None

    def cancel(self) -> bool:
        """Cancels the call. A running function is ended with its worker, unless it looks at `dgpu.cancelled()`. Returns
        whether there was anything to cancel.
        """
        return self._ended is None and self._session.client.cancel(self.task_id) > 0

    def __await__(self) -> Generator[Any, None, R]:
        return self._result_async().__await__()

    def __repr__(self) -> str:
        return f"<dgpu.Future {self.task_id} {'pending' if self._ended is None else self._ended.status}>"

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._ended is None:
            wait = _wait_seconds(self._session, deadline)
            self._take(self._ask(wait, deadline))
            if self._ended is None and not wait:
                raise TimeoutError(f"{self.task_id} has not ended after {timeout:g} s; it continues")

    def _ask(self, wait: float, deadline: float | None = None) -> CallResult:
        client = self._session.client
        try:
            return patiently(client, lambda: client.result(self.task_id, wait=round(wait, 3)), deadline)
        except Unreachable as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.task_id} is not known to have ended: {error}") from error
            raise
        except DgpuError as error:
            if error.code != EXPIRED:
                raise
            raise expired(self.task_id) from error

    def _take(self, answer: CallResult) -> None:
        if answer.status not in _ENDED:
            return
        if not has_value(answer):
            self._error = error_of(answer)
        elif answer.ref:
            self._error = expired(self.task_id)
            with unless_expired():
                client = self._session.client
                content = patiently(client, lambda: client.result_content(self.task_id))
                self._value, self._error = values.unpacked(content), None
        else:
            self._value = values.value_of(answer)
        self._ended = answer

    async def _result_async(self) -> R:
        client = self._session.async_client
        while self._ended is None:
            try:
                wait = self._session.wait_seconds
                answer = await patiently_async(
                    client,
                    lambda wait=wait: client.result(self.task_id, wait=wait),  # type: ignore[misc]
                )
            except DgpuError as error:
                if error.code != EXPIRED:
                    raise
                raise expired(self.task_id) from error
            if has_value(answer) and answer.ref:
                self._error = expired(self.task_id)
                with unless_expired():
                    content = await patiently_async(client, lambda: client.result_content(self.task_id))
                    self._value, self._error = values.unpacked(content), None
                self._ended = answer
            else:
                self._take(answer)
        return self.result()


def submit(
    session: Session, function: Function[R], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Future[R]:
    task = dict(described(session, function))
    body, client = values.packed_arguments(args, kwargs), session.client
    if values.is_large(body):
        task["args_ref"] = patiently(client, lambda: client.put_content(body, tenant=task.get("tenant_id")))
    else:
        task["args_msgpack"] = values.inline(body)
    key = secrets.token_hex(16)  # a repeated submit finds the first one
    return Future(patiently(client, lambda: client.submit(idempotency_key=key, **task)).task_id, session)


async def submit_async(
    session: Session, function: Function[R], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Future[R]:
    # The first time it may send an upload.
    task = dict(await asyncio.to_thread(described, session, function))
    body = values.packed_arguments(args, kwargs)
    client = session.async_client
    if values.is_large(body):
        tenant = task.get("tenant_id")
        task["args_ref"] = await patiently_async(client, lambda: client.put_content(body, tenant=tenant))
    else:
        task["args_msgpack"] = values.inline(body)
    key = secrets.token_hex(16)
    submitted = await patiently_async(client, lambda: client.submit(idempotency_key=key, **task))
    return Future(submitted.task_id, session)


def as_completed(futures: Iterable[Future[R]], timeout: float | None = None) -> Iterator[Future[R]]:
    """Futures in the order in which they end. Raises TimeoutError after `timeout` seconds in all."""
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = {future.task_id: future for future in futures}
    while waiting:
        session = next(iter(waiting.values()))._session  # noqa: SLF001 - of this module
        own = [task_id for task_id, each in waiting.items() if each._session is session]  # noqa: SLF001
        asked = own[:_MAX_ASKED]
        wait = _wait_seconds(session, deadline)
        is_some = len(asked) < len(waiting)
        answers = _results(session, asked, min(wait, _TURN_SECONDS) if is_some else wait, deadline)
        for task_id in asked if is_some else ():  # the others are asked about next
            waiting[task_id] = waiting.pop(task_id)
        for answer in answers:
            future = waiting.pop(answer.task_id, None)
            if future is not None:
                future._take(answer)  # noqa: SLF001 - of this module
                yield future
        if waiting and not wait:
            raise TimeoutError(f"{len(waiting)} calls have not ended after {timeout:g} s; they continue")


def _results(
    session: Session, asked: Sequence[str], wait: float, deadline: float | None
) -> Sequence[CallResult]:
    client = session.client
    try:
        return patiently(client, lambda: client.results(asked, wait=round(wait, 3)), deadline).results
    except Unreachable as error:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{len(asked)} calls are not known to have ended: {error}") from error
        raise


def _wait_seconds(session: Session, deadline: float | None) -> float:
    """For the next answer. 0: the time is up, and this is the last question, or the only one."""
    if deadline is None:
        return session.wait_seconds
    return min(session.wait_seconds, max(0.0, deadline - time.monotonic()))
