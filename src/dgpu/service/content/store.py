"""Bytes by their SHA-256, separate for each tenant: archives of projects, and later other content of tasks.

Content is written to a temporary file and renamed when its hash is verified, so a crash leaves no partial content.
It stays while something uses it (`UsedContent`), and for a while after its last use. When there is no room, content
that nothing uses is deleted, the least recently used first. Other schedulers take copies (`content/copies.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from dgpu.core.model.ids import TenantId

MIN_FREE_BYTES = 256 << 20  # on the disk, which the journal needs too
RECENT_S = 3_600.0  # content used within this time is not deleted: a submit may follow
_NAME = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"tenant-[0-9a-f]{32}")
_FULL = {errno.ENOSPC, errno.EDQUOT}

UsedContent: TypeAlias = frozenset[tuple[TenantId, str]]  # tenant and digest
ContentKey: TypeAlias = tuple[str, str]  # the tenant's folder and the digest


class ContentLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 1 << 30  # of one content
    tenant_bytes: int = 10 << 30  # of one tenant
    total_bytes: int = 20 << 30
    retention_s: float = 7 * 86_400.0  # after the last use


class ContentTooLarge(Exception):  # noqa: N818 - the name states the failure
    """Above the limit of one content."""


class ContentMismatch(Exception):  # noqa: N818 - the same
    """The bytes have another SHA-256."""


class ContentStoreFull(Exception):  # noqa: N818 - the same
    """The text says which limit is reached."""


class _Kept:
    __slots__ = ("size", "used_s")

    def __init__(self, size: int, used_s: float) -> None:
        self.size = size
        self.used_s = used_s  # wall clock


class ContentStore:
    """Calls block. They may come from any thread."""

    def __init__(self, folder: Path, limits: ContentLimits) -> None:
        self.limits = limits
        self._folder = folder
        self._incoming = folder / "incoming"
        self._lock = threading.Lock()
        self._kept: dict[ContentKey, _Kept] = {}
        self._arriving: dict[Arrival, int] = {}  # bytes that are promised to it
        self._next = 0
        self.on_stored: Callable[[ContentKey], None] = lambda _: None  # called in any thread
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._incoming.iterdir():  # by a crash
            left.unlink(missing_ok=True)
        for path in folder.glob("tenant-*/*"):
            if _NAME.fullmatch(path.name):
                found = path.stat()
                self._kept[path.parent.name, path.name] = _Kept(found.st_size, found.st_mtime)

    def find(self, tenant_id: TenantId, digest: str) -> int | None:
        """Its size. It counts as used now. None: the store does not have it."""
        key = (_folder_of(tenant_id), digest)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            kept.used_s = time.time()
            try:
                os.utime(self._path(key))
            except FileNotFoundError:  # deleted by hand
                del self._kept[key]
                return None
            except OSError:
                pass
            return kept.size

    def open(self, tenant_id: TenantId, digest: str) -> int | None:
        """A descriptor to read from. None: the store does not have it."""
        if self.find(tenant_id, digest) is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            return os.open(self._path((_folder_of(tenant_id), digest)), os.O_RDONLY | os.O_CLOEXEC)
        return None

    def used_bytes(self, tenant_id: TenantId) -> int:
        folder = _folder_of(tenant_id)
        with self._lock:
            return sum(kept.size for (each, _), kept in self._kept.items() if each == folder)

    def begin(self, tenant_id: TenantId, digest: str, size: int, used: UsedContent) -> Arrival:
        """Makes room for `size` bytes. Raises ContentTooLarge, ContentStoreFull or OSError."""
        return self._begin((_folder_of(tenant_id), digest), size, used)

    # -- copies between schedulers

    def listed(self, after: ContentKey | None, limit: int) -> list[tuple[ContentKey, int, int]]:
        """Keys with sizes and seconds of the last use, in the order of the keys."""
        with self._lock:
            keys = sorted(key for key in self._kept if after is None or key > after)
        return self.described(keys[:limit])

    def described(self, keys: Iterable[ContentKey]) -> list[tuple[ContentKey, int, int]]:
        """The same for these keys. Keys that are not here are left out."""
        with self._lock:
            kept = ((key, self._kept.get(key)) for key in keys)
            return [(key, each.size, int(each.used_s)) for key, each in kept if each is not None]

    def open_copy(self, key: ContentKey) -> int | None:
        """A descriptor. This is no use of the content. None: the store does not have it."""
        with self._lock:
            if key not in self._kept:
                return None
        with contextlib.suppress(FileNotFoundError):
            return os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        return None

    def lacks(self, key: ContentKey, used_s: int) -> bool:
        """Another scheduler has it, and last used it then. If it is here too, the later use counts."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and self._path(key).exists():
                if used_s > kept.used_s:
                    kept.used_s = used_s
                    with contextlib.suppress(OSError):
                        os.utime(self._path(key), (used_s, used_s))
                return False
            return True

    def begin_copy(self, key: ContentKey, size: int, used_s: int, used: UsedContent) -> Arrival | None:
        """None: it is not worth a copy, because nothing uses it, and it would be deleted soon or drive out other
        content. Raises as `begin` does.
        """
        if not (_FOLDER.fullmatch(key[0]) and _NAME.fullmatch(key[1])):
            raise ContentMismatch
        if key not in {(_folder_of(tenant_id), digest) for tenant_id, digest in used}:
            with self._lock:
                is_old = time.time() - used_s > self.limits.retention_s
                is_full = self._held() + size > self.limits.total_bytes
                if is_old or is_full or self._held(key[0]) + size > self.limits.tenant_bytes:
                    return None
        return self._begin(key, size, used, used_s=used_s)

    def _begin(self, key: ContentKey, size: int, used: UsedContent, *, used_s: float = 0.0) -> Arrival:
        if size > self.limits.max_bytes:
            raise ContentTooLarge
        with self._lock:
            self._make_room(key[0], size, used)
            self._next += 1
            arrival = Arrival(self, key, self._incoming / str(self._next), size, used_s)
            self._arriving[arrival] = size
        return arrival

    def expire(self, used: UsedContent) -> None:
        """Deletes content that nothing has used for too long."""
        with self._lock:
            for key in self._unused(used):
                if time.time() - self._kept[key].used_s > self.limits.retention_s:
                    self._delete(key)

    # -- of an arrival

    def settle(self, arrival: Arrival, key: ContentKey | None, size: int) -> None:
        """`key` None: it was given up."""
        with self._lock:
            self._arriving.pop(arrival, None)
            if key is not None:
                path = self._path(key)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                arrival.path.rename(path)
                _sync_folder(path.parent)
                used_s = arrival.used_s or time.time()
                with contextlib.suppress(OSError):
                    os.utime(path, (used_s, used_s))
                self._kept[key] = _Kept(size, used_s)
        if key is None:
            arrival.path.unlink(missing_ok=True)
        else:
            self.on_stored(key)

    # -- room

    def _make_room(self, folder: str, size: int, used: UsedContent) -> None:
        mine = [key for key in self._unused(used) if key[0] == folder]
        while self._held(folder) + size > self.limits.tenant_bytes:
            if not mine:
                raise ContentStoreFull(_full("of this tenant", self._held(folder), self.limits.tenant_bytes))
            self._delete(mine.pop(0))
        others = self._unused(used)
        while self._held() + size > self.limits.total_bytes:
            if not others:
                raise ContentStoreFull(_full("in total", self._held(), self.limits.total_bytes))
            self._delete(others.pop(0))
        while _free_bytes(self._folder) < size + MIN_FREE_BYTES:
            if not others:
                raise ContentStoreFull("the disk of the scheduler has no room")
            self._delete(others.pop(0))

    def _held(self, folder: str = "") -> int:
        kept = sum(each.size for key, each in self._kept.items() if folder in {"", key[0]})
        return kept + sum(size for each, size in self._arriving.items() if folder in {"", each.key[0]})

    def _unused(self, used: Iterable[tuple[TenantId, str]]) -> list[ContentKey]:
        """The least recently used first."""
        busy = {(_folder_of(tenant_id), digest) for tenant_id, digest in used}
        recent_s = time.time() - RECENT_S
        free = [key for key, kept in self._kept.items() if key not in busy and kept.used_s < recent_s]
        return sorted(free, key=lambda key: self._kept[key].used_s)

    def _delete(self, key: ContentKey) -> None:
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)
        self._kept.pop(key, None)

    def _path(self, key: ContentKey) -> Path:
        return self._folder / key[0] / key[1]


class Arrival:
    """Content on its way into the store. End it with `finish` or `give_up`."""

    def __init__(self, store: ContentStore, key: ContentKey, path: Path, size: int, used_s: float) -> None:
        self.key = key
        self.path = path
        self.used_s = used_s  # elsewhere; 0: used now, for the first time
        self._store = store
        self._promised = size
        self._hash = hashlib.sha256()
        self._size = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, piece: bytes) -> None:
        """Raises ContentTooLarge for more bytes than promised, ContentStoreFull or OSError."""
        self._size += len(piece)
        if self._size > self._promised:
            raise ContentTooLarge
        self._hash.update(piece)
        view = memoryview(piece)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            if error.errno in _FULL:
                raise ContentStoreFull("the disk of the scheduler has no room") from None
            raise

    def finish(self) -> None:
        """Returns when it is durable. Raises ContentMismatch or OSError."""
        if self._hash.hexdigest() != self.key[1]:
            raise ContentMismatch
        os.fsync(self._descriptor)
        self._close()
        self._store.settle(self, self.key, self._size)

    def give_up(self) -> None:
        self._close()
        self._store.settle(self, None, 0)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def key_of(tenant_id: TenantId, digest: str) -> ContentKey:
    return _folder_of(tenant_id), digest


def _folder_of(tenant_id: TenantId) -> str:
    """A hash: ids of tenants may differ only in case, and some file systems ignore it."""
    return f"tenant-{hashlib.sha256(tenant_id.encode()).hexdigest()[:32]}"


def _full(whose: str, held: int, limit: int) -> str:
    return f"uploads {whose} use {held:,} of {limit:,} bytes, and tasks that wait or run need them"


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
