from __future__ import annotations

import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration, parse_ids
from dgpu.cli.connection import builtins, connect, patiently
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.output import print_document

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.call_answers import CallResult

app = typer.Typer(add_completion=False)

_WAIT_SECONDS = 20.0
_WAIT_SECONDS_OF_SEVERAL = 3.0  # a silent address is left after 5 s
_ENDED = frozenset({"success", "failed", "cancelled"})


@app.command()
def result(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42: a call of a function.")],
    wait: Annotated[bool, typer.Option("--wait", "-W", help="Wait until it has ended.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", "-t", metavar="T", help="Wait at most so long.")
    ] = None,
) -> int:
    """The value that a function returned, as JSON. An exception is shown with its traceback, and the exit code is 1.

    Bytes are written as they are. A call that has not ended gives exit code 7.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    limit_s = parse_duration(timeout) if timeout else None
    found = awaited(client, parse_ids([name])[0], limit_s if wait or timeout else 0.0)
    return show_result(client, found, flags)


def awaited(client: Client, task_id: str, limit_s: float | None) -> CallResult:
    """Returns when the call has ended, or after this time; None: no limit."""
    until = None if limit_s is None else time.monotonic() + limit_s
    longest = _WAIT_SECONDS if len(client.urls) == 1 else _WAIT_SECONDS_OF_SEVERAL
    while True:
        left = longest if until is None else max(0.0, min(longest, until - time.monotonic()))
        found = patiently(lambda left=left: client.result(task_id, wait=round(left, 3)))  # type: ignore[misc]
        if found.status in _ENDED or (until is not None and time.monotonic() >= until):
            return found


def show_result(client: Client, found: CallResult, flags: Flags) -> int:
    if not flags.is_table:
        print_document(builtins(found), flags)
        return _code(found)
    if found.status == "success":
        _print_value(_value(client, found))
    elif found.status not in _ENDED:
        raise CliFailure(
            f"{found.task_id} has not ended: {found.status}. To wait: dgpu result --wait "
            f"{found.task_id.removeprefix('task-')}",
            ExitCode.TIMEOUT,
        )
    else:
        note(
            found.traceback.rstrip() or f"dgpu: {found.task_id} {found.status}: {found.error or found.reason}"
        )
    return _code(found)


def _code(found: CallResult) -> int:
    if found.status == "success":
        return ExitCode.OK
    if found.status == "cancelled":
        return ExitCode.INTERRUPTED
    if found.status not in _ENDED:
        return ExitCode.TIMEOUT
    return ExitCode.TASK_TIMEOUT if found.reason == "timeout" else ExitCode.FAILED


def _value(client: Client, found: CallResult) -> Any:
    import msgspec

    if found.ref:
        return msgspec.msgpack.decode(client.result_content(found.task_id))
    if found.encoding == "msgpack":
        return msgspec.msgpack.decode(base64.b64decode(found.result or ""))
    return found.result


def _print_value(value: Any) -> None:
    if isinstance(value, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        return
    text = json.dumps(value, ensure_ascii=not sys.stdout.isatty(), default=_as_text)
    typer.echo(text)


def _as_text(value: Any) -> str:
    """Values that JSON does not have: bytes inside others are base64, dates and the like their text."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)
