"""`@dgpu.model` and `@dgpu.task`. A worker imports this, too: nothing here needs a connection."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from dgpu.functions.options import checked
from dgpu.worker import registry
from dgpu.worker.registry import DeclaredModel

if TYPE_CHECKING:
    from dgpu.functions.futures import Future
    from dgpu.functions.session import Session

R = TypeVar("R")
_loaded_here: dict[str, tuple[DeclaredModel, Any]] = {}


def model(
    name: str, *, memory_mb: int = 0, unload: Callable[[Any], object] | None = None
) -> Callable[[Callable[[], Any]], DeclaredModel]:
    """Decorates a function that loads a model. Each worker calls it once and keeps the model.

    `memory_mb` is the GPU memory that it takes, if known. `unload` (or `@load.unload`) gets the model before its memory
    is given back.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"dgpu.model: name is {name!r}, expected a text like 'deepseek-7b'")

    def decorate(load: Callable[[], Any]) -> DeclaredModel:
        declared = DeclaredModel(name, load, memory_mb=memory_mb)
        declared.on_unload = unload
        return registry.declare(declared)

    return decorate


@overload
def task(function: Callable[..., R], /) -> Function[R]: ...
@overload
def task(**options: Any) -> Callable[[Callable[..., R]], Function[R]]: ...
def task(function: Callable[..., R] | None = None, /, **options: Any) -> Any:
    """Decorates a function that is to run on a GPU: `@dgpu.task` or `@dgpu.task(model="deepseek-7b", timeout=60)`.

    With a model, the function gets it as its first argument. Options: model, timeout (seconds), gpus, gpu_memory,
    share, retries, priority, max_workers, preload, env, python, python_path, upload, tenant, pool, name, labels,
    workdir, cpus, ram_mb, gpu_model, constraints.
    """
    if function is not None:
        return Function(function, options)
    return lambda decorated: Function(decorated, options)


class Function(Generic[R]):
    """A function that runs here when it is called, and on a GPU of the cluster when it is submitted."""

    def __init__(self, function: Callable[..., R], options: Mapping[str, Any]) -> None:
        self.local = function
        self.options = checked(options)
        chosen = self.options.get("model", "")
        self.model_name: str = chosen.name if isinstance(chosen, DeclaredModel) else chosen
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Runs in this process, with the model loaded in this process."""
        return (
            self.local(self._model_here(), *args, **kwargs)
            if self.model_name
            else self.local(*args, **kwargs)
        )

    def with_options(self, **options: Any) -> Function[R]:
        """The same function with other options."""
        return Function(self.local, {**self.options, **options})

    def submit(self, *args: Any, **kwargs: Any) -> Future[R]:
        """Queues one call."""
        from dgpu.functions.futures import submit

        return submit(self._session(), self, args, kwargs)

    async def submit_async(self, *args: Any, **kwargs: Any) -> Future[R]:
        """Queues one call. The future can be awaited."""
        from dgpu.functions.futures import submit_async

        return await submit_async(self._session(), self, args, kwargs)

    def map(
        self,
        *iterables: Iterable[Any],
        ordered: bool = True,
        progress: bool | None = None,
        return_exceptions: bool = False,
        in_flight: int = 2_000,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[R]:
        """Results of one call per item, as they come; `ordered=False`: as they end.

        Items are read as needed: at most `in_flight` calls wait or run. The first failure is raised and cancels the
        other calls, unless `return_exceptions`. `progress=True` shows a line on stderr; None: if that is a terminal.
        """
        from dgpu.functions.mapping import MapOptions, mapped

        options = MapOptions(
            ordered=ordered, progress=progress, return_exceptions=return_exceptions, in_flight=in_flight
        )
        return mapped(self._session(), self, zip(*iterables, strict=False), kwargs or {}, options)

    def amap(
        self,
        *iterables: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        in_flight: int = 2_000,
        kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[R]:
        """As `map`, for `async for`."""
        from dgpu.functions.mapping import MapOptions, mapped_async

        options = MapOptions(
            ordered=ordered, progress=False, return_exceptions=return_exceptions, in_flight=in_flight
        )
        return mapped_async(self._session(), self, zip(*iterables, strict=False), kwargs or {}, options)

    def _session(self) -> Session:
        from dgpu.functions.session import default_session

        return default_session()

    def _model_here(self) -> Any:
        declared = registry.declared(self.model_name)
        if declared is None:
            known = ", ".join(registry.names()) or "none"
            raise LookupError(f"no @dgpu.model({self.model_name!r}) was imported; declared: {known}")
        found = _loaded_here.get(declared.name)
        if found is None or found[0] is not declared:
            found = _loaded_here[declared.name] = declared, declared()
        return found[1]

    def __repr__(self) -> str:
        return f"<dgpu.task {self.local.__module__}:{self.local.__qualname__}>"
