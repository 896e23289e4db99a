"""The call that runs in this process, as its function sees it: `dgpu.progress`, `dgpu.cancelled`, `dgpu.Cancelled`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

from dgpu.worker.frames import Call

MAX_PROGRESS_TEXT: Final = 200
Stop = Literal["", "cancelled", "timeout"]


class Cancelled(Exception):  # noqa: N818 - as in asyncio and concurrent.futures
    """Raise it from a function that saw `dgpu.cancelled()`: the call ends as cancelled, and its worker lives on."""

    __module__ = "dgpu"  # its name in tracebacks


class RunningCall:
    """One call while it runs. The thread that reads the socket sets `stop`; the function's thread reads it."""

    __slots__ = ("call", "newest", "on_progress", "stop", "stop_seen")

    def __init__(self, call: Call, on_progress: Callable[[], None]) -> None:
        self.call = call
        self.on_progress = on_progress
        self.stop: Stop = ""
        self.stop_seen = False
        self.newest: tuple[int, str] | None = None  # progress that has not been sent


class _Context:
    """What runs now in this process."""

    def __init__(self) -> None:
        self.call: RunningCall | None = None
        self.is_importing = False  # the modules of functions, for the first call or a preload


current = _Context()


def cancelled() -> bool:
    """Whether this call is to stop: it was cancelled, or its time is up. Always false outside a worker.

    A function that looks here from time to time, and returns or raises `dgpu.Cancelled`, keeps its worker and the
    loaded models. One that does not is ended with its worker after the grace period.
    """
    call = current.call
    if call is None or not call.stop:
        return False
    call.stop_seen = True
    return True


def progress(fraction: float, text: str = "") -> None:
    """Say how far this call is, from 0 to 1. `dgpu ps`, `dgpu top` and the dashboard show it. Cheap to call often.

    Outside a worker it does nothing, so that the function also runs locally.
    """
    if not isinstance(fraction, int | float) or math.isnan(fraction) or not 0 <= fraction <= 1:
        raise ValueError(f"progress: fraction is {fraction!r}, expected a number from 0 to 1")
    call = current.call
    if call is not None:
        call.newest = (round(fraction * 1000), str(text)[:MAX_PROGRESS_TEXT])
        call.on_progress()
