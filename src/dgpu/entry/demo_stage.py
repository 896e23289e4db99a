"""The output of the demo: lines of text, and on a terminal a progress bar below them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgpu.wire.answers import TaskAnswer
from dgpu.wire.cluster_answers import GpuAnswer

if TYPE_CHECKING:
    from rich.progress import Progress

_PLAIN_SECONDS = 4.0


class Stage:
    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._progress: Progress | None = None
        self._bar: int = 0
        self._last_plain = 0.0
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        at = f"{time.monotonic() - self._started:5.1f} s  "
        first, *more = text.splitlines()
        lines = [at + first, *(" " * len(at) + line for line in more)]
        if self._progress is not None:
            for line in lines:
                self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def open_bar(self, total: int) -> None:
        if not self.live:
            return
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("        "),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} over"),
            TextColumn("{task.description}", markup=True),
            transient=True,
        )
        self._bar = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, tasks: Sequence[TaskAnswer], gpus: Sequence[GpuAnswer]) -> None:
        running = sum(1 for task in tasks if task.status == "running")
        waiting = sum(1 for task in tasks if task.status == "pending")
        over = len(tasks) - running - waiting
        if self._progress is not None:
            cells = "".join("[green]■[/]" if gpu.status == "busy" else "[dim]□[/]" for gpu in gpus)
            words = f"{running} running, {waiting} waiting   {cells}"
            self._progress.update(self._bar, completed=over, description=words)  # type: ignore[arg-type]
        elif not self.live and time.monotonic() - self._last_plain > _PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self.say(f"{over} of {len(tasks)} ended, {running} running, {waiting} waiting")

    def close_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in rows) + 2
        lines = [f"  {name:<{width}}{text}" for name, text in rows]
        sys.stdout.write("\n".join(["", title, *lines, ""]) + "\n")
        sys.stdout.flush()
