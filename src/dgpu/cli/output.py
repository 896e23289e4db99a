"""Tables for people, documents for programs. A table fits the width of a terminal; in a pipe nothing is cut."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dgpu.cli.failures import note, translated
from dgpu.cli.flags import WATCH_SECONDS, Flags
from dgpu.cli.formats import one_line

Row = Mapping[str, Any]

_LEAST_WIDTH = 12
# JSON leaves these control characters as they are, and terminals obey them.
_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
_WIDEST_PLAIN = 120  # longer values are shown in full but not aligned

STATUS_STYLES = {
    "running": "green",
    "ready": "green",
    "idle": "green",
    "ok": "green",
    "success": "dim",
    "pending": "yellow",
    "draining": "yellow",
    "unconfirmed": "yellow",
    "reserved": "yellow",
    "warn": "yellow",
    "busy": "cyan",
    "warm": "green",
    "starting": "yellow",
    "cancelled": "magenta",
    "failed": "red",
    "fail": "red",
    "error": "red",
    "offline": "red",
    "firing": "red",
    "critical": "red",
    "warning": "yellow",
    "resolved": "dim",
}


class Column(NamedTuple):
    title: str
    text: Callable[[Row], str]
    wide: bool = False  # only in -o wide
    right: bool = False
    stretches: bool = False  # shrinks first on a narrow terminal
    wraps: bool = False  # onto further lines, instead of being cut
    needs: int = 0  # columns of the terminal; left out on a narrower one


def print_rows(
    document: Any, rows: Sequence[Row], columns: Sequence[Column], name_key: str, flags: Flags
) -> None:
    """`document` is the server's response, shown by json and yaml."""
    if flags.output == "name":
        _write("".join(f"{row[name_key]}\n" for row in rows))
    elif flags.is_table:
        chosen = [column for column in columns if not column.wide or flags.output == "wide"]
        print_table(rows, chosen)
    else:
        print_document(document, flags)


def print_document(document: Any, flags: Flags) -> None:
    """A list has one document for each id: it is printed as a stream, in which each looks as if it were alone."""
    documents = document if isinstance(document, list) else [document]
    if flags.output == "yaml":
        import yaml

        _write(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))
        return
    import json

    indent = None if flags.watch or len(documents) > 1 else 2
    texts = [json.dumps(each, indent=indent, ensure_ascii=False) for each in documents]
    _write("".join(text.translate(_ESCAPES) + "\n" for text in texts))


def print_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    if not rows:
        return
    on_terminal = sys.stdout.isatty()
    if on_terminal:
        room = shutil.get_terminal_size().columns
        columns = [column for column in columns if column.needs <= room]
    cells = [[one_line(column.text(row)) for column in columns] for row in rows]
    if on_terminal:
        _print_rich(cells, columns)
    else:
        _write(plain_table(cells, columns))


def plain_table(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> str:
    titles = [column.title for column in columns]
    widths = [max(map(len, place)) for place in zip(titles, *cells, strict=True)]
    # One very long command must not pad all other lines with spaces.
    most = [
        _WIDEST_PLAIN if column.stretches else width for column, width in zip(columns, widths, strict=True)
    ]
    widths = list(map(min, widths, most))
    lines = []
    for line in (titles, *cells):
        parts = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip() + "\n")
    return "".join(lines)


def _print_rich(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, no_color="NO_COLOR" in os.environ or None)
    widths = [max(map(cell_len, place)) for place in zip((c.title for c in columns), *cells, strict=True)]
    given = fitted(widths, columns, console.width)
    if sum(given) + 2 * (len(given) - 1) > console.width:
        _write(plain_table(cells, columns))  # too narrow for a table: let the terminal wrap the lines
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column, width in zip(columns, given, strict=True):
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            width=width,
        )
    for line in cells:
        table.add_row(*(Text(text, style=STATUS_STYLES.get(text, "")) for text in line))
    console.print(table)


def fitted(widths: Sequence[int], columns: Sequence[Column], room: int) -> list[int]:
    """Columns that stretch shrink first, the widest before the others."""
    given = list(widths)
    places = [place for place, column in enumerate(columns) if column.stretches]
    excess = sum(given) + 2 * (len(given) - 1) - room
    while excess > 0 and places:
        widest = max(places, key=lambda place: given[place])
        if given[widest] <= _LEAST_WIDTH:
            break
        given[widest] -= 1
        excess -= 1
    return given


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """A page about one object: aligned names and values. The lines of a long value stay aligned."""
    shown = [(name, text) for name, text in fields if text]
    if not shown:
        return
    width = max(len(name) for name, _ in shown) + 2
    lines = []
    for name, text in shown:
        first, *more = [one_line(line) for line in text.splitlines()] or [""]
        lines.append(f"{name:<{width}}{first}".rstrip())
        lines.extend(" " * width + line for line in more)
    _write("\n".join(lines) + "\n")


def repeat(draw: Callable[[], None], flags: Flags) -> None:
    """Once, or with --watch until Ctrl-C, which gives exit code 0."""
    if not flags.watch:
        draw()
        return
    screen = sys.stdout.isatty() and flags.is_table
    try:
        while True:
            if screen:
                _write("\x1b[H\x1b[2J")
            try:
                draw()
            except Exception as error:
                failure = translated(error)
                if failure is None:
                    raise
                note(f"dgpu: {failure.message}")  # the scheduler may be restarting
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
            if flags.is_table and not screen:
                _write("\n")
    except KeyboardInterrupt:
        if screen:
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
