"""The way to the scheduler, and the tasks that come back from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import typer

from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import Flags
from dgpu.cli.lateness import Lateness

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

T = TypeVar("T")

_ANSWER_SECONDS = 30.0  # for one call; asking a scheduler that hangs again would only double it
_PATIENCE_SECONDS = 120.0  # a scheduler that restarts is waited for by those who wait for a task anyway
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
            repeats_timeouts=False,
            waiting=late.watch,
        )
    except ValueError as error:
        raise wrong_address(error) from None
    late.url = client.url
    return client


def wrong_address(error: ValueError) -> typer.BadParameter:
    """What a client could not be made with, as a mistake of usage."""
    from dgpu.client.server import BadToken

    hint = "--token" if isinstance(error, BadToken) else "--server"
    return typer.BadParameter(str(error), param_hint=hint)


def is_same_host(url: str) -> bool:
    from dgpu.wire.address import is_loopback

    return is_loopback(urlsplit(url).hostname or "")


def builtins(answer: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(answer)


def is_final(task: TaskAnswer) -> bool:
    return task.status not in {"pending", "running"}


def task_code(task: TaskAnswer) -> int:
    """What `run` and `wait` return: the task's own code, or one that says how it ended."""
    if task.status == "success":
        return 0
    if task.status == "cancelled":
        return ExitCode.INTERRUPTED
    if task.reason == "timeout":
        return ExitCode.TASK_TIMEOUT
    if task.exit_code is None or task.exit_code == 0:
        return ExitCode.OWN_FAILURE
    return task.exit_code if task.exit_code > 0 else 128 - task.exit_code


def patiently(ask: Callable[[], T]) -> T:
    """Asks again while the scheduler is away, within a bound."""
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
    """Looks often at first, then twice a second."""
    pause = _FIRST_POLL_SECONDS
    while True:
        task = patiently(lambda: client.get(task_id))
        seen(task)
        if done(task):
            return task
        time.sleep(pause)
        pause = min(_LONGEST_POLL_SECONDS, pause * 1.5)
