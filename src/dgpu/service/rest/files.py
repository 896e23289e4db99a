"""The files of a task: a list, and downloads. Read from its node; the scheduler stores nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from litestar import Request, get
from litestar.params import PathParameter, QueryParameter
from litestar.response import Stream

from dgpu.core.model.gang import MAX_NODES
from dgpu.core.model.ids import NodeId
from dgpu.service.access.principal import Principal
from dgpu.service.rest import listing
from dgpu.service.rest.attempts import attempts_of
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.streams import AttemptQuery, RankQuery
from dgpu.service.rest.tasks import CursorQuery, Given, Opener, TaskIdText, Who
from dgpu.service.task_files import FileReading, FilesUnavailable, Place
from dgpu.wire.answers import FieldError, Problem, TaskAnswer, instant
from dgpu.wire.file_answers import FileEntry, FileKind, FileList
from dgpu.wire.json_body import BadRequest, shorten
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import attempt_of, run_number
from dgpu.wire.run_dirs import run_dir_name

MAX_PATH_BYTES = 4_096
_MAX_CURSOR = 1_024
_MAX_OFFSET = (1 << 53) - 1
_KINDS: dict[str, FileKind] = {"file": "file", "directory": "directory", "link": "link"}

PathQuery = Annotated[
    str | None,
    QueryParameter(
        description="A directory below the task's; the task's own directory if absent.", required=False
    ),
]
FilePath = Annotated[str, PathParameter(description="A file, relative to the task's directory.")]
OffsetQuery = Annotated[
    str | None, QueryParameter(description="The first byte to send; 0 if absent.", required=False)
]
VersionQuery = Annotated[
    str | None,
    QueryParameter(description="The ETag of an earlier answer, without its quotes.", required=False),
]
LimitQuery = Annotated[str | None, QueryParameter(description="1 to 1000; 100 if absent.", required=False)]


class _Where(NamedTuple):
    task: TaskAnswer
    place: Place
    rank: int
    root: str  # for display


@get(
    "/api/v1/tasks/{task_id:str}/files",
    summary="Files of a task",
    description="The entries of one directory, in the order of their names. The files are on the task's node: 503 "
    "`node_unreachable` while it is not connected, 409 `not_started` before the first attempt. `gone` is true once "
    "executor.workdir_retention has deleted the directory, or if the task left it empty.",
)
async def list_files(
    rest: Given,
    who: Who,
    task_id: TaskIdText,
    path: PathQuery = None,
    limit: LimitQuery = None,
    cursor: CursorQuery = None,
    attempt: AttemptQuery = None,
    rank: RankQuery = None,
) -> FileList:
    number = listing.parse_limit(limit)
    after = _decode_cursor(cursor)
    where = await _where(rest, who, task_id, path or "", attempt, rank)
    entries: list[pb.FileEntry] = []
    more = gone = False
    try:
        _refuse_nowhere(where)
        entries, more = await rest.files.list_files(where.place, after=after, limit=number)
    except FilesUnavailable as error:
        gone = error.code == "directory_gone" and not (where.place.workdir or where.place.path)
        if not gone:
            raise _problem(error, where) from None
    return FileList(
        task_id=where.task.task_id,
        attempt=attempt_of(where.place.run),
        rank=where.rank,
        node=where.place.node_id,
        workdir=where.root,
        path=where.place.path,
        files=[_entry(each, where.place.path) for each in entries],
        gone=gone,
        next_cursor=_encode_cursor(entries[-1].name) if more and entries else None,
    )


@get(
    "/api/v1/tasks/{task_id:str}/files/{file_path:path}",
    summary="Download a file of a task",
    description="The bytes that the file had when it was opened. If the connection ends before Content-Length is "
    "reached, the scheduler or the node was lost, or the file was truncated meanwhile. To continue, here or at another "
    "scheduler, repeat the request with `offset` and with the ETag of the first answer as `version`: 412 "
    "`file_changed` if the file is no longer the same. A path must stay below the task's "
    "directory: `..` is refused with 400, a link that leads out with 409.",
    media_type="application/octet-stream",
)
async def download_file(
    rest: Given,
    who: Who,
    opener: Opener,
    request: Request[Any, Any, Any],
    task_id: TaskIdText,
    file_path: FilePath,  # noqa: ARG001 - for the description; the path itself is read below, not normalised
    attempt: AttemptQuery = None,
    rank: RankQuery = None,
    offset: OffsetQuery = None,
    version: VersionQuery = None,
) -> Stream:
    begin = 0 if offset is None else listing.parse_whole("offset", offset, 0, _MAX_OFFSET)
    path = request.scope["path"].partition("/files/")[2]
    where = await _where(rest, who, task_id, path, attempt, rank)
    opened = opener()
    try:
        _refuse_nowhere(where)
        reading = await rest.files.open_file(where.place)
    except FilesUnavailable as error:
        opened.close()
        raise _problem(error, where) from None
    except BaseException:
        opened.close()
        raise
    if (version or reading.version) != reading.version or begin > reading.entry.size:
        reading.close()
        opened.close()
        raise _refused(
            412, "file_changed", f"{path} has changed since the download began. Download it again."
        )
    pieces = _pieces(opened, reading, begin)
    try:
        first = await anext(pieces, b"")
    except FilesUnavailable as error:
        raise _problem(error, where) from None
    name = quote(path.rstrip("/").rpartition("/")[2], safe="")
    return Stream(
        _all(first, pieces),
        media_type="application/octet-stream",
        headers={
            "content-length": str(reading.entry.size - begin),
            "dgpu-offset": str(begin),
            "etag": f'"{reading.version}"',
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
        },
    )


async def _pieces(opened: OpenStream, reading: FileReading, begin: int) -> AsyncGenerator[bytes, None]:
    pieces = reading.pieces(begin)
    try:
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()
        opened.close()


async def _all(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        if first:
            yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()


async def _where(
    rest: Backend, who: Principal, task_id: str, path: str, attempt: str | None, rank: str | None
) -> _Where:
    number = listing.task_id_of(task_id)
    which = 0 if attempt is None else listing.parse_whole("attempt", attempt, 1, 1_000_000)
    which_rank = 0 if rank is None else listing.parse_whole("rank", rank, 0, MAX_NODES - 1)
    clean = _clean_path(path)
    task = await listing.find_task(rest, who, number)
    if not task.attempt or task.allocation:
        what = "is an allocation and runs nothing" if task.allocation else "has not started yet"
        raise _refused(409, "not_started", f"{task.task_id} {what}; it has no files.")
    if which > task.attempt:
        detail = f"There was no attempt {which}, the latest is {task.attempt}."
        raise _refused(404, "unknown_attempt", detail)
    node = await _node(rest, task, which or task.attempt, which_rank)
    run = run_number(which or task.attempt, which_rank)
    workdir = "" if task.own_workdir else task.workdir
    isolation, tenant = rest.options.isolation, task.tenant_id
    account = (tenant, isolation.user_of(tenant)) if isolation.has_boundary else None
    place = Place(node_id=NodeId(node), task_id=number, run=run, workdir=workdir, path=clean, account=account)
    name = run_dir_name(number, run)
    root = workdir or (f"{task.workdir.rpartition('/')[0]}/{name}" if task.workdir else name)
    return _Where(task, place, which_rank, root)


def _refuse_nowhere(where: _Where) -> None:
    """The node is no longer known, or its tasks have no directories: a request is useless."""
    if not where.task.workdir:
        raise FilesUnavailable("directory_gone", f"{where.task.task_id} has no directory")


async def _node(rest: Backend, task: TaskAnswer, attempt: int, rank: int) -> str:
    if rank >= task.nodes:
        ranks = "only rank 0" if task.nodes == 1 else f"the ranks 0 to {task.nodes - 1}"
        raise _refused(404, "unknown_rank", f"{task.task_id} has {ranks}.")
    if attempt == task.attempt and not rank and task.node:
        return task.node
    for each in await attempts_of(rest, listing.task_id_of(task.task_id)):
        if each.attempt == attempt and rank < len(each.nodes):
            return each.nodes[rank]
    detail = f"The node of attempt {attempt}, rank {rank} of {task.task_id} is no longer known."
    raise _refused(404, "files_gone", detail)


def _clean_path(path: str) -> str:
    parts = path.split("/")
    expected = ""
    if path.startswith("/") or ".." in parts:
        expected = "a path relative to the task's directory, without .."
    elif "\0" in path or len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        expected = f"at most {MAX_PATH_BYTES} bytes and no NUL"
    if expected:
        detail = f"Expected {expected}, got {shorten(path)}."
        raise BadRequest("invalid_path", detail, errors=[FieldError(path="path", detail=detail)])
    return "/".join(part for part in parts if part not in {"", "."})


def _entry(entry: pb.FileEntry, directory: str) -> FileEntry:
    try:
        name, kind = entry.name.decode(), _KINDS.get(entry.kind, "other")
    except UnicodeDecodeError:
        name, kind = entry.name.decode(errors="replace"), "other"  # it cannot be requested by name
    path = f"{directory}/{name}" if directory and name else directory or name
    return FileEntry(
        path=path,
        kind=kind,
        size_bytes=entry.size,
        modified_at=instant(max(0, min(entry.modified_ms, 1 << 42))),
        target=entry.target.decode(errors="replace"),
    )


_STATUS = {
    "node_unreachable": (503, "Node not connected"),
    "node_busy": (503, "Node busy"),
    "node_silent": (503, "Node does not answer"),
    "not_found": (404, "No such file"),
    "directory_gone": (404, "Files gone"),
    "bad_path": (400, "Bad path"),
    "is_directory": (409, "A directory"),
    "not_a_file": (409, "Not a file"),
    "leads_out": (409, "Leads out"),
    "not_readable": (409, "Not readable"),
}
_CODES = {"not_found": "no_such_file", "directory_gone": "files_gone", "bad_path": "invalid_path"}


def _problem(error: FilesUnavailable, where: _Where) -> ProblemError:
    status, title = _STATUS.get(error.code, (409, "Files cannot be read"))
    detail = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if error.code == "directory_gone" and not where.place.workdir:
        detail = (
            f"The directory {where.root} on node {where.place.node_id} is gone: the task left it empty, or it was "
            "deleted by executor.workdir_retention."
        )
    elif error.code == "is_directory":
        detail = f"{detail[:-1]}; list it with ?path= on /files."
    problem = Problem(
        status=status,
        title=title,
        code=_CODES.get(error.code, error.code),
        detail=detail,
        facts={"why": str(error), "node": where.place.node_id},
    )
    return ProblemError(problem, {"retry-after": "5"} if status == 503 else None)


def _refused(status: int, code: str, detail: str) -> ProblemError:
    return ProblemError(Problem(status=status, title="No files", code=code, detail=detail))


def _encode_cursor(name: bytes) -> str:
    return base64.urlsafe_b64encode(name).decode().rstrip("=")


def _decode_cursor(text: str | None) -> bytes:
    if text is None:
        return b""
    try:
        name = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        name = b""
    if not name or len(text) > _MAX_CURSOR:
        raise listing.bad_query("cursor", text, "a next_cursor of an earlier answer")
    return name


ROUTES: tuple[Any, ...] = (list_files, download_file)
