from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from dgpu.cli.arguments import parse_duration, parse_ids
from dgpu.cli.connection import builtins, connect, is_final, patiently, task_code
from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import listed, plural
from dgpu.cli.output import Column, print_rows
from dgpu.cli.ps import name_of, place_of, time_of

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)

_LOOK_SECONDS = 0.5
_FIRST_LOOK_SECONDS = 0.02

COLUMNS = (
    Column("ID", lambda row: str(row["task_id"])),
    Column("NAME", name_of, stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("CODE", lambda row: str(row["code"]), right=True),
    Column("TIME", time_of, right=True),
    Column("REASON", place_of, stretches=True),
)


@app.command()
def wait(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42.")],
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="T", help="Give up after 90s, 15m, 2h; exit code 7.")
    ] = None,
) -> int:
    """Wait for tasks to end. Returns the first exit code that is not 0."""
    flags = flags_of(ctx)
    flags.returns_task_code = True
    names = parse_ids(ids)
    until = None if at_most is None else time.monotonic() + parse_duration(at_most)
    client = connect(flags)
    tasks, in_time = _wait(client, names, until)
    rows: list[dict[str, Any]] = [
        {**builtins(task), "code": task_code(task)} for task in tasks if is_final(task)
    ]
    print_rows({"tasks": rows}, rows, COLUMNS, "task_id", flags)
    if not in_time:
        note(f"dgpu: not ended yet: {listed(task.task_id for task in tasks if not is_final(task))}")
        return ExitCode.TIMEOUT
    return next((row["code"] for row in rows if row["code"]), 0)


def _wait(client: Client, names: Sequence[str], until: float | None) -> tuple[list[TaskAnswer], bool]:
    tasks = {name: client.get(name) for name in names}
    pause = _FIRST_LOOK_SECONDS
    with _progress(len(names)) as progress:
        while True:
            progress.show(list(tasks.values()))
            open_names = [name for name in names if not is_final(tasks[name])]
            if not open_names:
                return list(tasks.values()), True
            if until is not None and time.monotonic() + pause > until:
                return list(tasks.values()), False
            time.sleep(pause)
            pause = min(_LOOK_SECONDS, pause * 1.5)
            for name in open_names:
                tasks[name] = patiently(functools.partial(client.get, name))


def _progress(total: int) -> _Quiet | _Bar:
    return _Bar(total) if sys.stderr.isatty() else _Quiet()


class _Quiet:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, tasks: Sequence[TaskAnswer]) -> None:
        del tasks


class _Bar:
    """On a terminal: the number of ended tasks, and the state of the first other task."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._row = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, tasks: Sequence[TaskAnswer]) -> None:
        left = [task for task in tasks if not is_final(task)]
        running = sum(1 for task in left if task.status == "running")
        words = f"{plural(running, 'task')} running, {len(left) - running} waiting" if left else ""
        if len(left) == 1:
            words = f"{left[0].task_id} {left[0].status}: {place_of(builtins(left[0]))}"
        self._progress.update(self._row, completed=len(tasks) - len(left), description=words)
