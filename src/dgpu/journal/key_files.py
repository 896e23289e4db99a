"""Files of idempotency keys next to the snapshots. They only grow, so that a snapshot writes only new keys.

A snapshot names the files with size and CRC, and the number and the mark of all keys. Bytes beyond that size belong to
a later snapshot or a failed write. A file is deleted when neither of the two snapshots names it.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from dgpu.core.model.idempotency import KeyRing, PackedKey, created_at
from dgpu.journal.durable import PRIVATE_FILE, make_folder, sync_folder, write_all
from dgpu.journal.errors import SnapshotDamaged

KEYS_FOLDER = "keys"
MAX_FILE_RECORDS = 65_536
MAX_FILES = 64
_MAX_NOTED = 200_000  # with more new keys, all keys are written again
_AT_A_TIME = 10_000

_NAME = re.compile(r"keys-(\d{8})\.jsonl")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PackedKey)


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a file that belongs to a snapshot."""

    name: str
    bytes: int
    crc: int
    records: int
    last_at: int  # time of its youngest key


class StoredKeys(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The keys of a snapshot. `inline`: a snapshot in memory contains them itself."""

    count: int
    mark: str
    oldest: dict[
        str, int
    ] = {}  # by tenant: the time of its oldest key. Older ones in the files are forgotten
    files: tuple[KeyFile, ...] = ()
    inline: tuple[PackedKey, ...] = ()


class KeysDamaged(SnapshotDamaged):
    """The snapshot is valid, but its files of keys are not."""


class KeyFiles:
    """Written by the follower. `files` are those of the snapshot it started with; None: all keys are written first."""

    def __init__(self, directory: Path, files: tuple[KeyFile, ...] | None = None) -> None:
        self._folder = directory / KEYS_FOLDER
        self._files = list(files or ())
        self._own: set[str] = set()
        self._noted: list[PackedKey] = []
        self._is_complete = files is not None  # files and noted keys together contain all keys

    def note(self, packed: PackedKey) -> None:
        if len(self._noted) >= _MAX_NOTED:
            self._noted, self._is_complete = [], False
        if self._is_complete:
            self._noted.append(packed)

    def save(self, ring: KeyRing) -> StoredKeys:
        """Raises OSError; the caller may try again."""
        files = [one for one in self._files if ring.count and one.last_at >= ring.oldest_at]
        records = sum(one.records for one in files) + len(self._noted)
        is_worn = len(files) >= MAX_FILES or records > 2 * ring.count + MAX_FILE_RECORDS
        if is_worn or not self._is_complete:
            files = self._write([], ring.packed())
        elif self._noted:
            files = self._write(files, self._noted)
        self._files, self._noted, self._is_complete = files, [], True
        return _told(ring, files=tuple(files))

    def clean(self, needed: Iterable[StoredKeys | None]) -> None:
        names = {one.name for stored in needed if stored is not None for one in stored.files}
        for path in _paths(self._folder):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _write(self, files: list[KeyFile], keys: Iterable[PackedKey]) -> list[KeyFile]:
        make_folder(self._folder)
        made = list(files)
        for part in _parts(keys):
            # Only files of this process grow: in other files, bytes after the end may belong to another snapshot.
            if not made or made[-1].name not in self._own or made[-1].records >= MAX_FILE_RECORDS:
                made.append(KeyFile(name=self._new_name(made), bytes=0, crc=0, records=0, last_at=0))
                self._own.add(made[-1].name)
            made[-1] = self._append(made[-1], part)
        sync_folder(self._folder)
        return made

    def _append(self, file: KeyFile, keys: list[PackedKey]) -> KeyFile:
        content = b"".join(_encoder.encode(packed) + b"\n" for packed in keys)
        descriptor = os.open(self._folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            write_all(descriptor, content, file.bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return KeyFile(
            name=file.name,
            bytes=file.bytes + len(content),
            crc=zlib.crc32(content, file.crc),
            records=file.records + len(keys),
            last_at=max(file.last_at, *(created_at(packed.value) for packed in keys)),
        )

    def _new_name(self, made: list[KeyFile]) -> str:
        """A name that neither an existing file nor a snapshot uses."""
        names = [path.name for path in _paths(self._folder)] + [one.name for one in (*self._files, *made)]
        number = max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0) + 1
        return f"keys-{number:08}.jsonl"


def is_key_file(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def inline_keys(ring: KeyRing) -> StoredKeys:
    return _told(ring, inline=tuple(ring.packed()))


def read_keys(ring: KeyRing, stored: StoredKeys, directory: Path | None, file: str) -> None:
    """Exactly the keys of the snapshot. Raises KeysDamaged."""
    for one in stored.files:
        ring.add_all(_records(_content(one, directory, file), file), stored.oldest)
    ring.add_all(stored.inline, stored.oldest)
    if (ring.count, f"{ring.mark:x}") != (stored.count, stored.mark):
        raise KeysDamaged(
            file,
            f"has {stored.count} idempotency keys, but its key files contain {ring.count} keys or other ones",
        )


def read_what_is_left(ring: KeyRing, directory: Path, *, upto_at: int, from_at: int) -> None:
    """All keys before a snapshot that any file still contains. A file is removed only when all its keys are forgotten,
    so a replay from an old snapshot to today ends with exactly today's keys.
    """
    found: dict[tuple[str, bytes], PackedKey] = {}
    for path in _paths(directory / KEYS_FOLDER):
        for packed in _readable_records(path.read_bytes()):
            if from_at <= created_at(packed.value) <= upto_at:
                found[packed.tenant, packed.key_hash] = packed
    for packed in sorted(found.values(), key=lambda each: created_at(each.value)):
        ring.add(packed)


def _content(one: KeyFile, directory: Path | None, file: str) -> bytes:
    if directory is None or not _NAME.fullmatch(one.name):
        raise KeysDamaged(file, f"names an invalid file of idempotency keys: {one.name!r}")
    path = directory / KEYS_FOLDER / one.name
    try:
        with path.open("rb") as opened:
            content = opened.read(one.bytes)
    except OSError as error:
        raise KeysDamaged(file, f"needs {path}, which cannot be read: {error}") from error
    if len(content) != one.bytes or zlib.crc32(content) != one.crc:
        raise KeysDamaged(file, f"needs {path}, which is damaged")
    return content


def _records(content: bytes, file: str) -> list[PackedKey]:
    try:
        return _decoder.decode_lines(content)
    except msgspec.DecodeError as error:
        raise KeysDamaged(file, f"names a line of idempotency keys that cannot be read: {error}") from error


def _readable_records(content: bytes) -> Iterator[PackedKey]:
    for line in content.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            yield _decoder.decode(line)


def _told(
    ring: KeyRing, *, files: tuple[KeyFile, ...] = (), inline: tuple[PackedKey, ...] = ()
) -> StoredKeys:
    oldest = {tenant: created_at(next(iter(keys.values()))) for tenant, keys in ring.by_tenant.items()}
    return StoredKeys(count=ring.count, mark=f"{ring.mark:x}", oldest=oldest, files=files, inline=inline)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("keys-*.jsonl")) if folder.is_dir() else []


def _parts(keys: Iterable[PackedKey]) -> Iterator[list[PackedKey]]:
    part: list[PackedKey] = []
    for packed in keys:
        part.append(packed)
        if len(part) == _AT_A_TIME:
            yield part
            part = []
    if part:
        yield part
