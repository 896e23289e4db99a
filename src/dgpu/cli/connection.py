"""Connects to the scheduler and reads tasks from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import typer

from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import Flags
from dgpu.cli.lateness import Lateness, Staleness

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

T = TypeVar("T")

_ANSWER_SECONDS = 30.0  # for one call, with its retries
_PATIENCE_SECONDS = 120.0  # `run` and `wait` wait this long for a scheduler that restarts
_FIRST_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.5


def connect(flags: Flags) -> Client:
    from dgpu.client.sync import Client

    late = Lateness(_ANSWER_SECONDS)
    try:
        client = Client(
            flags.server,
            token=flags.token,
            timeout_seconds=_ANSWER_SECONDS,
            retries=2,
            clean_env=True,  # the flags of a submit decide: see cli.submission
            waiting=late.watch,
            on_answer=Staleness().on_answer,
        )
    except ValueError as error:
        raise wrong_address(error) from None
    late.url = ", ".join(client.urls)
    return client


def wrong_address(error: ValueError) -> typer.BadParameter:
    """Reports invalid settings of the client as a usage error."""
    from dgpu.client.server import BadToken

    hint = "--token" if isinstance(error, BadToken) else "--server"
    return typer.BadParameter(str(error), param_hint=hint)


def is_same_host(urls: Iterable[str]) -> bool:
    """True if all these schedulers run on this machine."""
    from dgpu.wire.address import is_loopback

    return all(is_loopback(urlsplit(url).hostname or "") for url in urls)


def builtins(answer: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(answer)


def is_final(task: TaskAnswer) -> bool:
    """Whether the task, or all tasks of the array, have ended."""
    return task.status not in {"pending", "running"} if task.array is None else task.array.is_over


def task_code(task: TaskAnswer) -> int:
    """The exit code of `run` and `wait`: the task's own code, or a code for the way it ended. Of an array, the first
    code that is not 0, by index.
    """
    if task.array is None:
        return _code(task.status, task.reason, task.exit_code)
    return next((_code(each.status, each.reason, each.exit_code) for each in task.array.failures), 0)


def _code(status: str, reason: str, exit_code: int | None) -> int:
    if status == "success":
        return 0
    if status == "cancelled":
        return ExitCode.INTERRUPTED
    if reason == "timeout":
        return ExitCode.TASK_TIMEOUT
    if exit_code is None or exit_code == 0:
        return ExitCode.OWN_FAILURE
    return exit_code if exit_code > 0 else 128 - exit_code


def patiently(ask: Callable[[], T]) -> T:
    """Retries while the scheduler is unreachable, within a time limit."""
    from dgpu.client.errors import Unreachable

    deadline = time.monotonic() + _PATIENCE_SECONDS
    told = False
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            if not told:
                note("dgpu: the scheduler does not answer; waiting for it")
                told = True
            time.sleep(_LONGEST_POLL_SECONDS)


def poll(
    client: Client,
    task_id: str,
    done: Callable[[TaskAnswer], bool],
    seen: Callable[[TaskAnswer], None] = lambda _: None,
) -> TaskAnswer:
    """Polls often at first, then twice a second."""
    pause = _FIRST_POLL_SECONDS
    while True:
        task = patiently(lambda: client.get(task_id))
        seen(task)
        if done(task):
            return task
        time.sleep(pause)
        pause = min(_LONGEST_POLL_SECONDS, pause * 1.5)
