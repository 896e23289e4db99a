"""One scheduler, and one follower, for each directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from dgpu.journal.durable import PRIVATE_FILE, make_folder
from dgpu.journal.errors import JournalLocked

_RETRY_S = 0.05
_HOLDER_BYTES = 32


class FolderLock:
    """Held until closed or until the process ends, however it ends. Children do not inherit it."""

    def __init__(self, folder: Path, name: str = "lock", *, patience_s: float = 0) -> None:
        make_folder(folder)
        self._descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        give_up_at = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= give_up_at:
                holder = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
                os.close(self._descriptor)
                raise JournalLocked(str(folder), holder or "unknown")
            time.sleep(_RETRY_S)
        # For people only, and always of one length: rewriting it needs no room on a full disk.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, f"{os.getpid():<{_HOLDER_BYTES - 1}}\n".encode(), 0)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
