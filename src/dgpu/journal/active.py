"""The segment being written: one descriptor, the offset of the next record, and the file's identity under its name.

Two failures leave the journal intact and are reported as NotWritten, because the record is then certainly in no file
that a restart could read:

- There is no room (ENOSPC, EDQUOT). On a copy-on-write file system this also happens to preallocated blocks.
- The file lost its name, or another file has it, and it cannot be recreated.

Every other failed write or sync is final: after a failed fsync the kernel may have dropped the pages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from dgpu.journal.durable import (
    make_folder,
    open_new,
    overwrite_in_place,
    sync_folder,
    write_all,
    write_gently,
)
from dgpu.journal.errors import JournalBroken, NotWritten
from dgpu.journal.format import ALIGNMENT

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_COPY_BYTES = 1 << 20


class ActiveSegment:
    """Used by one thread at a time."""

    def __init__(self, path: Path, descriptor: int, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # of the next record
        self.unclean_bytes = 0  # after `offset`: remains of a record that was not stored
        self.relinked = 0
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self.capacity = found.st_size
        self._identity = (found.st_dev, found.st_ino)

    @property
    def free_bytes(self) -> int:
        return self.capacity - self.offset

    def write(self, record: bytes) -> None:
        """When it returns, the record is durable in the named file. Raises NotWritten, or OSError if the result is
        unknown.
        """
        written = 0
        try:
            while written < len(record):
                written += os.pwrite(self._descriptor, record[written:], self.offset + written)
            os.fdatasync(self._descriptor)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # Without its last bytes, no scan accepts the record. With them, it must be removed.
            self._take_back(len(record), must=written > len(record) - ALIGNMENT)
            raise NotWritten(f"no room for a record of {len(record)} bytes: {error}") from error
        if not self.is_in_place():
            self._stay_in_place(len(record))
        self.offset += len(record)

    def is_in_place(self) -> bool:
        """Whether a restart would find this file. Takes about 2 µs, so it is checked for every record."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - a third of the time of Path.stat
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def relink(self, *, upto: int | None = None) -> None:
        """Recreates the file under its name, with all records up to `upto`. The open descriptor still has them.

        A different file under that name is renamed. Raises OSError; then nothing has changed.
        """
        folder = self.path.parent
        make_folder(folder)
        overwrite_in_place(folder)
        sync_folder(folder.parent)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with contextlib.ExitStack() as undo:
            synced_last = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY
            )  # before the rename: it may fail for lack of descriptors
            undo.callback(os.close, synced_last)
            descriptor = open_new(temporary)
            undo.callback(os.close, descriptor)
            undo.callback(temporary.unlink, missing_ok=True)
            self._copy_to(descriptor, self.offset if upto is None else upto)
            if self.path.exists():
                self.path.rename(folder / f"replaced-{time.time_ns() // 1_000_000}-{self.path.name}")
            temporary.rename(self.path)
            undo.pop_all()
            try:
                os.fsync(synced_last)
            except OSError as error:
                raise JournalBroken(f"it is unknown whether {self.path} was recreated: {error}") from error
            finally:
                os.close(synced_last)
        os.close(self._descriptor)
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self._identity = (found.st_dev, found.st_ino)
        self.unclean_bytes = 0
        self.relinked += 1

    def clean(self, *, room_bytes: int = 0) -> None:
        """Writes and syncs zeros after the last record. With `room_bytes` it also proves that there is so much room."""
        size = min(max(self.unclean_bytes, room_bytes), self.free_bytes)
        if not size:
            return
        for start in range(self.offset, self.offset + size, _COPY_BYTES):
            write_all(self._descriptor, bytes(min(_COPY_BYTES, self.offset + size - start)), start)
        os.fdatasync(self._descriptor)
        self.unclean_bytes = 0

    def rewrite(self, start: int) -> None:
        """Writes the bytes from `start` to the end of the records again, then syncs.

        After a failed fsync, a page may be clean but not on the disk. A sync alone would skip it.
        """
        content = os.pread(self._descriptor, self.offset - start, start)
        write_all(self._descriptor, content, start)
        os.fdatasync(self._descriptor)

    def content(self) -> bytes:
        """All records, also of a file without a name."""
        return os.pread(self._descriptor, self.offset, 0)

    def release(self) -> int:
        """The descriptor; the caller must close it."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self.release())

    def _copy_to(self, descriptor: int, end: int) -> None:
        os.posix_fallocate(descriptor, 0, self.capacity)
        for start in range(0, self.capacity, _COPY_BYTES):
            size = min(_COPY_BYTES, self.capacity - start)
            known = os.pread(self._descriptor, min(size, end - start), start) if start < end else b""
            write_gently(descriptor, known.ljust(size, b"\0"), start)
        os.fsync(descriptor)

    def _stay_in_place(self, record_bytes: int) -> None:
        """The record is durable in a file that no restart would find."""
        try:
            self.relink(upto=self.offset + record_bytes)
        except OSError as error:
            self._take_back(record_bytes, must=True)
            why = f"{self.path} was deleted or replaced and cannot be recreated: {error}"
            raise NotWritten(why, gone=True) from error

    def _take_back(self, record_bytes: int, *, must: bool) -> None:
        self.unclean_bytes = max(self.unclean_bytes, record_bytes)
        try:
            self.clean()
        except OSError as error:
            if must or error.errno not in NO_ROOM:
                raise
