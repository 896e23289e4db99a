"""Copies the live output of a task to stdout, and resumes where it stopped after a restart of the scheduler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dgpu.cli.failures import ReaderLeft

if TYPE_CHECKING:
    from dgpu.client.sync import Client

_BREAKS = 240  # two a second, for as long as `run` and `wait` wait for a scheduler
_PAUSE_SECONDS = 0.5


class OutputFollower:
    def __init__(
        self,
        client: Client,
        task_id: str,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        rank: int | None = None,
        write: Callable[[bytes], None] | None = None,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        from dgpu.client.stream import OutputPlace

        self._client = client
        self._task_id = task_id
        self._attempt = attempt
        self._rank = rank
        self._write = write or write_output
        self._chosen = dict(chosen or {})  # further arguments of Client.stream_logs
        self._place = OutputPlace(tail)
        self.is_silent = True  # no byte received so far

    def follow(self) -> None:
        """Runs until the task ends. A second call after an interrupt resumes where the first one stopped."""
        from dgpu.client.errors import NotFound, Unreachable

        for _ in range(_BREAKS):
            try:
                self._show()
            except Unreachable:
                time.sleep(_PAUSE_SECONDS)
            except NotFound:
                return  # `dgpu logs` without -f explains why
            else:
                return

    def _show(self) -> None:
        pieces = self._client.stream_logs(
            self._task_id,
            follow=True,
            tail=self._place.begin(),
            attempt=self._attempt,
            rank=self._rank,
            **self._chosen,
        )
        for fresh in self._place.fresh(pieces):
            self.is_silent = False
            self._write(fresh)


def write_output(piece: bytes) -> None:
    try:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # `dgpu logs 42 | head -1` is no failure, although typer would report one.
        raise ReaderLeft from None
