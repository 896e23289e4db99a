"""Answers about the files of tasks."""

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
    path: str = ""  # the directory that is listed, relative to workdir
    files: list[FileEntry]
    gone: bool = (
        False  # the directory is not there any more: left empty, or deleted by executor.workdir_retention
    )
    next_cursor: str | None = None
