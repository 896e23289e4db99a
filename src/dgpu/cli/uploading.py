"""Sends the project of a task, with its progress on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from dgpu.cli.failures import note

if TYPE_CHECKING:
    from dgpu.client.sync import Client

_EVERY_S = 0.2
_QUIET_S = 1.0  # a shorter upload needs no progress


def with_uploads(
    client: Client, tasks: list[dict[str, Any]], *, is_sent: bool = True
) -> list[dict[str, Any]]:
    """The tasks with names of stored uploads in place of directories. A preview needs no upload."""
    if not is_sent:
        return [{name: value for name, value in task.items() if name != "upload"} for task in tasks]
    from dgpu.client.upload_calls import is_digest

    sent: dict[tuple[str, str | None], str] = {}
    filled = []
    for task in tasks:
        if isinstance(directory := task.get("upload"), str) and not is_digest(directory):
            key = (directory, task.get("tenant_id"))
            if key not in sent:
                sent[key] = _send(client, *key)
            task = {**task, "upload": sent[key]}  # noqa: PLW2901 - the task in full
        filled.append(task)
    return filled


def _send(client: Client, directory: str, tenant: str | None) -> str:
    shown = _Shown()
    client.on_progress = shown.on_progress
    began_s = time.monotonic()
    digest = client.upload(directory, tenant=tenant)
    shown.clear()
    if shown.sent_bytes:
        from dgpu.client.packing import in_units

        note(f"Uploaded {directory}: {in_units(shown.sent_bytes)} in {time.monotonic() - began_s:.1f} s.")
    return digest


class _Shown:
    """One line on a terminal, overwritten."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _QUIET_S
        self._width = 0
        self._is_terminal = sys.stderr.isatty()
        self.sent_bytes = 0

    def on_progress(self, step: str, done: int, total: int) -> None:
        if step == "sending":
            self.sent_bytes = done
        now_s = time.monotonic()
        if not self._is_terminal or now_s < self._next_s:
            return
        from dgpu.client.packing import in_units

        self._next_s = now_s + _EVERY_S
        percent = 100 * done // total if total else 100
        line = f"{step} {percent:3d} %  {in_units(done)} of {in_units(total)}"
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
