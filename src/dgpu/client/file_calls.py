"""Calls about the files of tasks."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from urllib.parse import quote

from dgpu.client.call import Call
from dgpu.client.errors import Unreachable
from dgpu.client.request import Request, api_path
from dgpu.wire.file_answers import FileList


class FileCalls:
    @Call
    def file_page(
        self,
        task_id: str | int,
        path: str = "",
        *,
        limit: int = 1_000,
        cursor: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Request[FileList]:
        """Entries of one directory below the task's, in the order of their names."""
        query = {"path": path or None, "limit": limit, "cursor": cursor, "attempt": attempt, "rank": rank}
        return Request("GET", api_path("tasks", task_id, "files", **query), FileList)


def download_path(task_id: str | int, path: str, *, attempt: int | None, rank: int | None) -> str:
    """The file's path keeps its slashes."""
    asked = api_path("tasks", task_id, "files", attempt=attempt, rank=rank)
    directory, mark, query = asked.partition("?")
    return f"{directory}/{quote(path)}{mark}{query}"


def whole(pieces: Iterable[bytes], size_bytes: int | None) -> Generator[bytes, None, None]:
    """Raises Unreachable for a body that ends early, because it is not the whole file."""
    got = 0
    for piece in pieces:
        got += len(piece)
        yield piece
    check_whole(got, size_bytes)


def check_whole(got: int, size_bytes: int | None) -> None:
    if size_bytes is not None and got < size_bytes:
        raise Unreachable(
            f"The download ended after {got:,} of {size_bytes:,} bytes: the node was lost, or the file was truncated."
        )
