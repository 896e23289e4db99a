"""Calls about the files of tasks."""

from __future__ import annotations

from collections.abc import Callable
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


class Download:
    """The place in a file at which a download that broke continues, also at another scheduler."""

    def __init__(self, task_id: str | int, path: str, *, attempt: int | None, rank: int | None) -> None:
        self._task_id = task_id
        self._path = path
        self._attempt = attempt
        self._rank = rank
        self._got = 0
        self._size: int | None = None
        self._version = ""

    def request_path(self) -> str:
        """The file's path keeps its slashes."""
        query: dict[str, int | str | None] = {"attempt": self._attempt, "rank": self._rank}
        if self._got:
            query |= {"offset": self._got, "version": self._version}
        asked = api_path("tasks", self._task_id, "files", **query)
        directory, mark, rest = asked.partition("?")
        return f"{directory}/{quote(self._path)}{mark}{rest}"

    def begin(self, header: Callable[[str], str | None]) -> None:
        """With the answer to the request. Raises Unreachable if it is not the rest of the same file."""
        version, offset = (header("etag") or "").strip('"'), header("dgpu-offset") or "0"
        if self._got and (not version or version != self._version or offset != str(self._got)):
            raise self._cut_off()
        self._version = version
        length = header("content-length")
        self._size = None if length is None else self._got + int(length)

    def on_piece(self, piece: bytes) -> bytes:
        self._got += len(piece)
        return piece

    def check_whole(self) -> None:
        """Raises Unreachable for a body that ended early."""
        if self._size is not None and self._got < self._size:
            raise self._cut_off()

    def _cut_off(self) -> Unreachable:
        return Unreachable(
            f"The download ended after {self._got:,} of {self._size or 0:,} bytes: the node was lost, or the file was "
            "truncated."
        )
