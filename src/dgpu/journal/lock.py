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
    """Held until closed or until the process ends. Children do not inherit it."""

    def __init__(self, folder: Path, name: str = "lock", *, patience_s: float = 0) -> None:
        self._path = folder / name
        self._descriptor = -1
        self._take(patience_s)

    def renew(self) -> bool:
        """Takes the lock again if its file was deleted or replaced, because another process would lock the new file.

        True: that was needed. Raises JournalLocked if another process was faster, OSError if no file can be made.
        """
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                return False
        except FileNotFoundError:
            pass
        old = self._descriptor
        try:
            self._take(0)
        except BaseException:
            self._descriptor = old
            raise
        os.close(old)
        return True

    def _take(self, patience_s: float) -> None:
        make_folder(self._path.parent)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        give_up_at = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= give_up_at:
                holder = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
                os.close(self._descriptor)
                raise JournalLocked(str(self._path.parent), holder or "unknown")
            time.sleep(_RETRY_S)
        # For people only. The length is fixed, so that rewriting needs no space on a full disk.
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
