"""One definition of a call serves both clients: `Client` answers it, `AsyncClient` is awaited.

    class TaskCalls:
        @Call
        def get(self, task_id: str | int) -> Request[answers.TaskAnswer]: ...

    client.get("task-1")  # answers.TaskAnswer
    await async_client.get("task-1")  # answers.TaskAnswer

The overloads of `Call.__get__` tell type checkers the same.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from dgpu.client.request import Request

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(abc.ABC):
    """A client whose calls return the answer."""

    @abc.abstractmethod
    def _do(self, request: Request[T]) -> T: ...


class Awaited(abc.ABC):
    """A client whose calls are awaited."""

    @abc.abstractmethod
    async def _do(self, request: Request[T]) -> T: ...


class Call(Generic[P, T]):
    """Decorates a method that builds a request. In each client, the method carries the request out."""

    def __init__(self, build: Callable[Concatenate[Any, P], Request[T]]) -> None:
        # help() must show the type that the call returns, not the return type of `build`.
        build.__annotations__["return"] = _without_request(build.__annotations__["return"])

        @functools.wraps(build)
        def blocking(client: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client._do(build(client, *args, **kwargs))  # noqa: SLF001

        @functools.wraps(build)
        async def awaited(client: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await client._do(build(client, *args, **kwargs))  # noqa: SLF001

        self._blocking = blocking
        self._awaited = awaited

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaited, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type[Blocking]) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(
        self, client: None, owner: type[Awaited]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    def __get__(self, client: object, owner: type) -> Any:
        method = self._awaited if issubclass(owner, Awaited) else self._blocking
        return method if client is None else MethodType(method, client)


def _without_request(annotation: str) -> str:
    """`Request[list[str]]` becomes `list[str]`. Annotations are strings: the modules of calls postpone them."""
    return annotation.removeprefix("Request[").removesuffix("]")
