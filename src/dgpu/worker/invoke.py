"""Runs one call in this thread and says how it ended. No exception leaves here, `SystemExit` included."""

from __future__ import annotations

import importlib
import inspect
import os
import pathlib
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dgpu.worker import entrypoints, gpu_memory, registry
from dgpu.worker.context import Cancelled, RunningCall, current
from dgpu.worker.frames import Call, Done, Outcome
from dgpu.worker.models import ModelCache
from dgpu.worker.results import CannotEncodeError, Files, decode_arguments, encode_value, is_large

MAX_ERROR_CHARS: Final = 4_000
MAX_TRACEBACK_CHARS: Final = 60_000
_NOT_OF_THE_USER: Final = (
    f"{pathlib.Path(__file__).parent}{os.sep}",
    "<frozen importlib",
    importlib.__file__,
)


class Invoker:
    """`healthy` is false once no later call can succeed in this process."""

    def __init__(
        self, *, models: ModelCache, files: Files, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.healthy = True
        self._models = models
        self._files = files
        self._clock = clock
        self._pid = os.getpid()
        self._found: dict[str, Any] = {}

    def run(self, call: Call, running: RunningCall) -> Done:
        begin = self._clock()
        current.call = running
        os.environ["DGPU_TASK_ID"] = f"task-{call.task_id}"
        os.environ["DGPU_ATTEMPT"] = str(call.attempt)
        try:
            value = self._call(call)
            done = self._returned(call.lease, value)
        except BaseException as error:  # noqa: BLE001 - whatever a function raises is its answer
            if os.getpid() == self._pid:
                done = self._raised(call, error)
        finally:
            current.call = None
            if os.getpid() != self._pid:
                # A forked child came back out of the function. Two processes must not serve one socket.
                os._exit(0)
        finished = _finished(done, running, ran_ms=int((self._clock() - begin) * 1000))
        if done.result_file and not finished.result_file:
            self._files.drop(done.result_file)
        return finished

    def _call(self, call: Call) -> Any:
        function = self._found.get(call.entrypoint)
        if function is None:
            function = self._found[call.entrypoint] = entrypoints.find(call.entrypoint)
        args, kwargs = decode_arguments(self._files.take(call.args_file) if call.args_file else call.args)
        name = getattr(function, "model_name", "") or ""
        if name:
            args.insert(0, self._models.get(_model(call.model or name, call.entrypoint)))
        value = getattr(function, "local", function)(*args, **kwargs)
        if inspect.iscoroutine(value):
            import asyncio

            return asyncio.run(value)
        return value

    def _returned(self, lease: int, value: Any) -> Done:
        body = encode_value(value)
        if not is_large(body):
            return Done(lease=lease, outcome="returned", result=body, size=len(body))
        name, sha256 = self._files.leave(lease, body)
        return Done(lease=lease, outcome="returned", result_file=name, sha256=sha256, size=len(body))

    def _raised(self, call: Call, error: BaseException) -> Done:
        if isinstance(error, entrypoints.NotFound):
            return _failed(call.lease, "raised", str(error))
        if isinstance(error, CannotEncodeError):
            return _failed(call.lease, "cannot_encode", str(error))
        outcome: Outcome = "cancelled" if isinstance(error, Cancelled) else "raised"
        text, trace = _described(error), _traceback(error)
        if gpu_memory.is_out_of_memory(error):
            outcome = "out_of_memory"
            self._recover(error)
        elif gpu_memory.is_broken_for_good(error):
            self.healthy = False
        return _failed(call.lease, outcome, text, trace)

    def _recover(self, error: BaseException) -> None:
        """Frames of the traceback hold tensors: without them, all memory of this process can be given back."""
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        self._models.evict_all()
        gpu_memory.give_back()
        self.healthy = gpu_memory.works()


def _model(name: str, entrypoint: str) -> registry.DeclaredModel:
    found = registry.declared(name)
    if found is None:
        known = ", ".join(registry.names()) or "none"
        raise entrypoints.NotFound(
            f"{entrypoint} needs the model {name!r}, but no @dgpu.model({name!r}) was imported; declared: {known}"
        )
    return found


def _finished(done: Done, running: RunningCall, *, ran_ms: int) -> Done:
    """A time-out counts however the function ended; a cancel only if the function saw it."""
    outcome, error = done.outcome, done.error
    if running.stop == "timeout":
        outcome, error = "timeout", "the function ended after its time was up"
    elif running.stop == "cancelled" and running.stop_seen and outcome != "out_of_memory":
        outcome, error = "cancelled", "cancelled; the function saw it and ended"
    if outcome == done.outcome:
        return msgspec.structs.replace(done, ran_ms=ran_ms)
    return Done(lease=done.lease, outcome=outcome, error=error, traceback=done.traceback, ran_ms=ran_ms)


def _failed(lease: int, outcome: Outcome, error: str, trace: str = "") -> Done:
    return Done(lease=lease, outcome=outcome, error=error[:MAX_ERROR_CHARS], traceback=trace)


def _described(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: the function called sys.exit({error.code!r})"
    return "".join(traceback.format_exception_only(error)).strip()[:MAX_ERROR_CHARS]


def _traceback(error: BaseException) -> str:
    """Begins in the code of the user. Without the middle if it is very long."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_OF_THE_USER):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
