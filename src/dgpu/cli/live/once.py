"""`dgpu top --once`: one picture on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dgpu.cli.live.feed import Picture
from dgpu.cli.live.rows import GPUS, NODES, TASKS, LiveColumn, Sheet, cell
from dgpu.cli.live.words import summary

_NOT_CUT = 400
_GAP = 2
_LEAST_WIDTH = 6
MAX_ROWS = 40  # per table; the verbs nodes, gpus and ps show all


def document(picture: Picture) -> dict[str, Any]:
    return {
        "at": picture.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "nodes": msgspec.to_builtins(picture.nodes),
        "gpus": msgspec.to_builtins(picture.gpus),
        "tasks": msgspec.to_builtins(picture.tasks),
        "running": picture.running,
        "waiting": picture.waiting,
        "quota": msgspec.to_builtins(picture.quota),
        "schedulers": msgspec.to_builtins(picture.schedulers),
    }


def print_once(picture: Picture) -> None:
    tty = sys.stdout.isatty()
    width = None if tty or os.environ.get("COLUMNS", "").isdigit() else _NOT_CUT
    console = Console(
        highlight=False,
        width=width,
        force_terminal=tty,
        color_system="auto" if tty else None,
        no_color="NO_COLOR" in os.environ or None,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )
    if tty:
        _print_all(console, picture)
        return
    with console.capture() as captured:
        _print_all(console, picture)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print_all(console: Console, picture: Picture) -> None:
    for line in summary(picture):
        console.print(line, overflow="fold")
    unlisted = sum(row.tasks for row in picture.tasks[MAX_ROWS:]) + picture.hidden_tasks
    for sheet, rows, more, verb in (
        (NODES, picture.nodes, len(picture.nodes[MAX_ROWS:]), "nodes"),
        (GPUS, picture.gpus.gpus, len(picture.gpus.gpus[MAX_ROWS:]), "gpus"),
        (TASKS, picture.tasks, unlisted, "ps"),
    ):
        console.print()
        _print_sheet(console, sheet, rows[:MAX_ROWS])
        if more:
            console.print(f"… {more:,} more: dgpu {verb}")


def _print_sheet(console: Console, sheet: Sheet[Any], rows: Sequence[Any]) -> None:
    if not rows:
        console.print(sheet.empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = [column for column in sheet.columns if console.width >= column.needs]
    columns = [column for column in columns if column.title != "REMARK" or any(map(column.text, rows))]
    cells = [[cell(column, row) for column in columns] for row in rows]
    widths = [max(map(cell_len, place)) for place in zip((c.title for c in columns), *cells, strict=True)]
    for column, width in zip(columns, _fitted(widths, columns, console.width), strict=True):
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for row, line in zip(rows, cells, strict=True):
        words = zip(columns, line, strict=True)
        table.add_row(*(Text(text, style=column.style(row)) for column, text in words))
    console.print(table)


def _fitted(widths: Sequence[int], columns: Sequence[LiveColumn[Any]], room: int) -> list[int]:
    given = list(widths)
    places = [place for place, column in enumerate(columns) if column.stretches]
    excess = sum(given) + _GAP * (len(given) - 1) - room
    while excess > 0 and places:
        widest = max(places, key=lambda place: given[place])
        if given[widest] <= _LEAST_WIDTH:
            break
        given[widest] -= 1
        excess -= 1
    return given
