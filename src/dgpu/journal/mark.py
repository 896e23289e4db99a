"""The last acknowledged group, recorded outside the journal.

The mark is written after each group is durable and before the group is acknowledged. It is never synced: it costs one
small write. It survives the end of the process. After a power failure it may be old, but it is never ahead of the
durable groups. A mark ahead of the journal therefore proves that acknowledged groups are missing, even if the damaged
end is all zeros and looks like unused space.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import msgspec

from dgpu.journal.durable import PRIVATE_FILE

MARK_NAME = "acknowledged"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    epoch: int
    last_task: int  # the highest task id in use


class AcknowledgedMark:
    def __init__(self, directory: Path) -> None:
        path = directory / MARK_NAME
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)

    def note(self, mark: Mark) -> None:
        """A mark that cannot be written stays behind, which is allowed."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _line(mark), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_mark(directory: Path) -> Mark | None:
    """None: there is none, or a power failure damaged it. Then it proves nothing."""
    try:
        line = (directory / MARK_NAME).read_bytes()
        index, epoch, last_task, _ = line.split()
        mark = Mark(index=int(index), epoch=int(epoch), last_task=int(last_task))
    except (OSError, ValueError):
        return None
    return mark if _line(mark) == line else None


def _line(mark: Mark) -> bytes:
    """Fixed length, so that it is overwritten in place."""
    numbers = b"%020d %010d %020d" % (mark.index, mark.epoch, mark.last_task)
    return b"%b %08x\n" % (numbers, zlib.crc32(numbers))
