"""Calls about uploads of projects."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path
from dgpu.wire.upload_answers import UploadAnswer, UploadRoom

_PIECE_BYTES = 256 * 1024

Progress = Callable[[str, int, int], None]  # packing or sending, bytes so far, bytes in all


class UploadCalls:
    @Call
    def upload_room(self, *, tenant: str | None = None) -> Request[UploadRoom]:
        """The limits of uploads of a tenant, and the bytes that it uses."""
        return Request("GET", api_path("uploads", tenant=tenant), UploadRoom)

    @Call
    def find_upload(self, sha256: str, *, tenant: str | None = None) -> Request[UploadAnswer]:
        """Raises NotFound if the scheduler does not have it."""
        return Request("GET", api_path("uploads", sha256, tenant=tenant), UploadAnswer)


def put_upload(sha256: str, path: Path, tenant: str | None) -> Request[UploadAnswer]:
    headers = {"Content-Type": "application/octet-stream"}
    return Request(
        "PUT", api_path("uploads", sha256, tenant=tenant), UploadAnswer, headers=headers, file=path
    )


def is_digest(upload: object) -> bool:
    """A finished upload; otherwise it is a directory."""
    return isinstance(upload, str) and len(upload) == 64 and not set(upload) - set("0123456789abcdef")


def length_of(file: Path | None) -> dict[str, str]:
    return {} if file is None else {"Content-Length": str(file.stat().st_size)}


async def pieces_of(path: Path) -> AsyncIterator[bytes]:
    import asyncio  # only for clients that have it anyway

    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece


class CountedFile:
    """A file that tells how much of it was read."""

    def __init__(self, path: Path, on_read: Callable[[int, int], None]) -> None:
        self._file: BinaryIO = path.open("rb")
        self._on_read = on_read
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._on_read(self._file.tell(), self.size_bytes)
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
