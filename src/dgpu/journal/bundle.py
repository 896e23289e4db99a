"""A snapshot and its files of idempotency keys as one packed stream, in parts that fit the engine.

The stream is read and written piece by piece: a large snapshot never is in memory as a whole. A line of JSON with names
and sizes comes first, then the contents.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from dgpu.journal.durable import PRIVATE_FILE, make_folder, sync_folder
from dgpu.journal.errors import SnapshotDamaged
from dgpu.journal.key_files import KEYS_FOLDER, KeyFile, is_key_file
from dgpu.journal.snapshot import SEAL_BYTES, SNAPSHOT_NAME, is_sealed, read_head

_PIECE_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 20
_LEVEL = 1  # members write and sync each byte, but packing must not cost the master a core

Content = tuple[str, int, Iterable[bytes]]  # name, size, pieces


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[tuple[str, int], ...]
    format: int = 1


class SnapshotBundle:
    """The newest snapshot of a directory. All its files are open, so that the follower may replace them meanwhile."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError, or SnapshotDamaged."""
        path = directory / SNAPSHOT_NAME
        self._name = str(path)
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(path.open("rb"))
            head = read_head(self._file, self._name)
            self.index, self.epoch = head.index, head.epoch
            keys = head.key_ring.files if head.key_ring is not None else ()
            folder = directory / KEYS_FOLDER
            self._keys = [(one, opened.enter_context((folder / one.name).open("rb"))) for one in keys]
            self._opened = opened.pop_all()

    def parts(self, part_bytes: int) -> Iterator[bytes]:
        """Raises SnapshotDamaged at the latest after the last part, so a damaged snapshot is never used."""
        size = os.fstat(self._file.fileno()).st_size
        keys: list[Content] = [
            (f"{KEYS_FOLDER}/{one.name}", one.bytes, self._checked_keys(one, file))
            for one, file in self._keys
        ]
        return pack_bundle([(SNAPSHOT_NAME, size, self._checked_state(size)), *keys], part_bytes)

    def close(self) -> None:
        self._opened.close()

    def _checked_state(self, size: int) -> Iterator[bytes]:
        crc = 0
        self._file.seek(0)
        for piece in _pieces(self._file, size - SEAL_BYTES):
            crc = zlib.crc32(piece, crc)
            yield piece
        seal = self._file.read()
        if not is_sealed(seal, crc):
            raise SnapshotDamaged(self._name, "does not match its CRC")
        yield seal

    def _checked_keys(self, one: KeyFile, file: BinaryIO) -> Iterator[bytes]:
        crc = 0
        for piece in _pieces(file, one.bytes):
            crc = zlib.crc32(piece, crc)
            yield piece
        if crc != one.crc:
            raise SnapshotDamaged(self._name, f"needs {one.name}, which is damaged")


def pack_bundle(files: Sequence[Content], part_bytes: int) -> Iterator[bytes]:
    packer = zlib.compressobj(_LEVEL)
    head = _Head(files=tuple((name, size) for name, size, _ in files))
    ready = bytearray(packer.compress(msgspec.json.encode(head) + b"\n"))
    for _, _, pieces in files:
        for piece in pieces:
            ready += packer.compress(piece)
            while len(ready) >= part_bytes:
                yield bytes(ready[:part_bytes])
                del ready[:part_bytes]
    ready += packer.flush()
    for start in range(0, len(ready), part_bytes):
        yield bytes(ready[start : start + part_bytes])


def unpack_bundle(parts: Iterable[bytes], folder: Path, source: str) -> None:
    """Writes the files into an empty folder and syncs them. Raises SnapshotDamaged, which names `source`; OSError."""
    stream = _Stream(_unpacked(parts, source), source)
    try:
        head = msgspec.json.decode(stream.line(), type=_Head)
    except msgspec.DecodeError as error:
        raise SnapshotDamaged(source, f"cannot be read by this version: {error}") from error
    for name, size in head.files:
        folder_name, _, file_name = name.rpartition("/")
        if name != SNAPSHOT_NAME and not (folder_name == KEYS_FOLDER and is_key_file(file_name)):
            raise SnapshotDamaged(source, f"contains a file {name!r}, which is no part of a snapshot")
        make_folder((folder / name).parent)
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            for piece in stream.take(size):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        sync_folder((folder / name).parent)
    if next(stream.rest(), b""):
        raise SnapshotDamaged(source, "is longer than its list of files")


class _Stream:
    def __init__(self, pieces: Iterator[bytes], source: str) -> None:
        self._pieces = pieces
        self._source = source
        self._left = b""

    def line(self) -> bytes:
        while b"\n" not in self._left and len(self._left) <= _MAX_HEAD_BYTES:
            self._left += self._next()
        line, _, self._left = self._left.partition(b"\n")
        return line

    def take(self, size: int) -> Iterator[bytes]:
        while size > 0:
            piece = self._left or self._next()
            self._left = piece[size:]
            yield piece[:size]
            size -= len(piece[:size])

    def rest(self) -> Iterator[bytes]:
        if self._left:
            yield self._left
        yield from self._pieces

    def _next(self) -> bytes:
        piece = next(self._pieces, b"")
        if not piece:
            raise SnapshotDamaged(self._source, "is cut short")
        return piece


def _unpacked(parts: Iterable[bytes], source: str) -> Iterator[bytes]:
    """Reads all parts, also those after the end: the check of their hash comes last."""
    unpacker = zlib.decompressobj()
    try:
        for part in parts:
            # Also without input left: the library may hold output that did not fit.
            left = part
            while piece := unpacker.decompress(left, _PIECE_BYTES):
                yield piece
                left = unpacker.unconsumed_tail
    except zlib.error as error:
        raise SnapshotDamaged(source, f"cannot be unpacked: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise SnapshotDamaged(source, "is cut short, or too long")


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
