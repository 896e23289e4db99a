"""Responses about the files of tasks."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dgpu.wire.answers import Answer

FileKind: TypeAlias = Literal["file", "directory", "link", "other"]


class FileEntry(Answer, frozen=True, kw_only=True):
    path: str  # relative to workdir
    kind: FileKind
    size_bytes: int = 0  # of a file
    modified_at: str
    target: str = ""  # of a link


class FileList(Answer, frozen=True, kw_only=True):
    task_id: str
    attempt: int
    rank: int = 0
    node: str
    workdir: str
    path: str = ""  # the listed directory, relative to workdir
    files: list[FileEntry]
    gone: bool = (
        False  # the directory no longer exists: it was empty, or executor.workdir_retention deleted it
    )
    next_cursor: str | None = None
