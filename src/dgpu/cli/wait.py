from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from dgpu.cli.arguments import parse_duration, parse_ids
from dgpu.cli.arrays import progress, result, state_of
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
    Column(
        "NAME", lambda row: name_of({**row, "array_index": None} if row["array"] else row), stretches=True
    ),
    Column("STATUS", state_of),
    Column("CODE", lambda row: str(row["code"]), right=True),
    Column("TIME", lambda row: "" if row["array"] else time_of(row), right=True),
    Column("REASON", lambda row: result(row) if row["array"] else place_of(row), stretches=True),
)


@app.command()
def wait(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="T", help="Give up after 90s, 15m, 2h; exit code 7.")
    ] = None,
) -> int:
    """Wait for tasks to end. Returns the first exit code that is not 0. The id of an array means all of its tasks."""
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
        done, total = len(tasks) - len(left), len(tasks)
        if len(left) == 1 and left[0].array is not None:
            array = left[0].array
            words = f"{left[0].task_id}: {progress(builtins(array))}"
            if total == 1:
                done, total = array.count - array.pending - array.running, array.count
        elif len(left) == 1:
            words = f"{left[0].task_id} {left[0].status}: {place_of(builtins(left[0]))}"
        self._progress.update(self._row, completed=done, total=total, description=words)
