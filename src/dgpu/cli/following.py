"""The output of a task, as it comes, to stdout; it goes on where it was after the scheduler has been away."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgpu.client.sync import Client

_BREAKS = 240  # as long as a scheduler is waited for, at two a second
_PAUSE_SECONDS = 0.5


def follow_output(client: Client, task_id: str, attempt: int | None, *, tail: int | None = None) -> None:
    from dgpu.client.errors import NotFound, Unreachable

    shown = 0
    for _ in range(_BREAKS):
        try:
            # Asked again it starts from the beginning, so what was shown already is passed over.
            skip = shown
            for piece in client.logs(task_id, follow=True, tail=tail, attempt=attempt):
                fresh = piece[skip:]
                skip = max(0, skip - len(piece))
                shown += len(fresh)
                write_output(fresh)
        except Unreachable:
            if tail is not None and shown:
                tail, shown = 0, 0  # what came in between is lost, rather than shown twice
            time.sleep(_PAUSE_SECONDS)
        except NotFound:
            return  # it has written nothing
        else:
            return


def write_output(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
