"""The part of both clients that reads the files of tasks."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TypeVar
from urllib.parse import quote, urlencode

from dgpu.client.calls import Call
from dgpu.client.errors import Unreachable
from dgpu.wire.file_answers import FileEntry, FileList

T = TypeVar("T")
_PAGE = 1_000


def page(
    task_id: str | int,
    path: str,
    *,
    limit: int,
    cursor: str | None,
    attempt: int | None,
    rank: int | None,
) -> Call[FileList]:
    query = _query(path=path or None, limit=limit, cursor=cursor, attempt=attempt, rank=rank)
    return Call(method="GET", path=f"{_files(task_id)}{query}", answer=FileList)


def download_path(task_id: str | int, path: str, *, attempt: int | None, rank: int | None) -> str:
    return f"{_files(task_id)}/{quote(path)}{_query(attempt=attempt, rank=rank)}"


class FileCalls(abc.ABC):
    @abc.abstractmethod
    def _do(self, call: Call[T]) -> T: ...

    def file_page(
        self,
        task_id: str | int,
        path: str = "",
        *,
        limit: int = _PAGE,
        cursor: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> FileList:
        """Entries of one directory below the task's, in the order of their names."""
        return self._do(page(task_id, path, limit=limit, cursor=cursor, attempt=attempt, rank=rank))

    def files(
        self, task_id: str | int, path: str = "", *, attempt: int | None = None, rank: int | None = None
    ) -> Iterator[FileEntry]:
        """All entries of one directory, page by page as they are read."""
        cursor: str | None = None
        while True:
            found = self.file_page(task_id, path, cursor=cursor, attempt=attempt, rank=rank)
            yield from found.files
            cursor = found.next_cursor
            if cursor is None:
                return


class AsyncFileCalls(abc.ABC):
    @abc.abstractmethod
    async def _do(self, call: Call[T]) -> T: ...

    async def file_page(
        self,
        task_id: str | int,
        path: str = "",
        *,
        limit: int = _PAGE,
        cursor: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> FileList:
        """Entries of one directory below the task's, in the order of their names."""
        return await self._do(page(task_id, path, limit=limit, cursor=cursor, attempt=attempt, rank=rank))

    async def files(
        self, task_id: str | int, path: str = "", *, attempt: int | None = None, rank: int | None = None
    ) -> AsyncIterator[FileEntry]:
        """All entries of one directory, page by page as they are read."""
        cursor: str | None = None
        while True:
            found = await self.file_page(task_id, path, cursor=cursor, attempt=attempt, rank=rank)
            for entry in found.files:
                yield entry
            cursor = found.next_cursor
            if cursor is None:
                return


def whole(pieces: Iterable[bytes], size_bytes: int | None) -> Generator[bytes, None, None]:
    """A body that ends early is no file: Unreachable instead."""
    got = 0
    for piece in pieces:
        got += len(piece)
        yield piece
    check_whole(got, size_bytes)


def check_whole(got: int, size_bytes: int | None) -> None:
    if size_bytes is not None and got < size_bytes:
        raise Unreachable(
            f"The download ended after {got:,} of {size_bytes:,} bytes: the node was lost, or the file was cut."
        )


def _files(task_id: str | int) -> str:
    return f"/api/v1/tasks/{quote(str(task_id), safe='')}/files"


def _query(**asked: str | int | None) -> str:
    given = {name: value for name, value in asked.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""
