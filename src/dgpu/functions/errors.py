"""Errors of functions, as the program that submitted them sees them.

RemoteError                the function raised an exception, or could not run
├── RemoteError, ValueError …   the same, if the exception is one of Python's own: `except ValueError` works
├── CallCancelled          it was cancelled
├── CallTimeout            its time was up (also a TimeoutError)
├── OutOfGpuMemory         the GPU had no memory left (also a MemoryError)
└── ResultExpired          it has ended, but its result is not kept any more
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Iterator

from dgpu.client.errors import DgpuError
from dgpu.wire.call_answers import CallResult

# Exceptions that one text creates, and that mean no end of the program that raises them.
_PLAIN = frozenset(
    {
        *(
            "ArithmeticError",
            "AssertionError",
            "AttributeError",
            "BufferError",
            "ConnectionError",
            "EOFError",
        ),
        *(
            "FileExistsError",
            "FileNotFoundError",
            "FloatingPointError",
            "ImportError",
            "IndexError",
            "KeyError",
        ),
        *("LookupError", "MemoryError", "ModuleNotFoundError", "NameError", "NotImplementedError", "OSError"),
        *("OverflowError", "PermissionError", "RecursionError", "RuntimeError", "TimeoutError", "TypeError"),
        *("ValueError", "ZeroDivisionError"),
    }
)


class RemoteError(Exception):
    """`traceback` is the text of the remote traceback, `type_name` the name of the exception's type there."""

    def __init__(
        self, message: str, *, task_id: str = "", type_name: str = "", reason: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.task_id = task_id
        self.type_name = type_name
        self.reason = reason
        self.traceback = traceback

    def __str__(self) -> str:
        where = f" ({self.task_id})" if self.task_id else ""
        trace = f"\n\nRemote traceback:\n{self.traceback.rstrip()}" if self.traceback else ""
        return f"{self.message}{where}{trace}"


class CallCancelled(RemoteError):  # noqa: N818 - the name states the failure
    pass


class CallTimeout(RemoteError, TimeoutError):  # noqa: N818 - as above
    pass


class OutOfGpuMemory(RemoteError, MemoryError):  # noqa: N818 - as above
    pass


class ResultExpired(RemoteError):  # noqa: N818 - as above
    pass


_BY_REASON: dict[str, type[RemoteError]] = {
    "cancelled": CallCancelled,
    "timeout": CallTimeout,
    "out_of_memory": OutOfGpuMemory,
}
EXPIRED = "result_expired"


def has_value(ended: CallResult) -> bool:
    """A call that returned, and whose result is not kept any more, has none."""
    return ended.status == "success" and ended.reason != EXPIRED


@contextlib.contextmanager
def unless_expired() -> Iterator[None]:
    """Ends the block silently if the scheduler does not keep the result any more."""
    try:
        yield
    except DgpuError as error:
        if error.code != EXPIRED:
            raise


def expired(task_id: str) -> ResultExpired:
    text = "the call has ended, but its result is not kept any more"
    return ResultExpired(text, task_id=task_id, reason=EXPIRED)


def error_of(ended: CallResult) -> RemoteError:
    """The exception for a call without a value."""
    if ended.reason == EXPIRED:
        return expired(ended.task_id)
    reason = "cancelled" if ended.status == "cancelled" else ended.reason
    # The words that stand before the error in lists of tasks.
    text = ended.error.removeprefix("raised an exception: ") or f"the function ended as {ended.status}" + (
        f": {reason}" if reason else ""
    )
    name, colon, message = text.partition(": ")
    is_typed = (
        reason not in _BY_REASON and bool(colon or ended.traceback) and name.replace(".", "").isidentifier()
    )
    kind = _BY_REASON.get(reason) or (_mixed(name) if is_typed and name in _PLAIN else RemoteError)
    is_named = is_typed and kind is not RemoteError
    return kind(
        message if is_named else text,
        task_id=ended.task_id,
        type_name=name if is_typed else "",
        reason=reason,
        traceback=ended.traceback,
    )


@functools.cache
def _mixed(name: str) -> type[RemoteError]:
    """RemoteError and the exception of Python in one, so that either `except` catches it."""
    return type(name, (RemoteError, getattr(builtins, name)), {"__module__": RemoteError.__module__})
