from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.copying import Target, exists, safe_parts, target_directory
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import one_line, plural
from dgpu.cli.output import Column, print_document, print_rows

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.file_answers import FileEntry

MAX_FILES = 1_000_000
_MAX_NOTES = 20

app = typer.Typer(add_completion=False)


class _Source(NamedTuple):
    client: Client
    task_id: str
    attempt: int | None
    rank: int | None

    def entries(self, path: str) -> Iterator[FileEntry]:
        return self.client.files(self.task_id, path, attempt=self.attempt, rank=self.rank)

    def pieces(self, path: str) -> Iterable[bytes]:
        return self.client.download(self.task_id, path, attempt=self.attempt, rank=self.rank)


class _Copy(NamedTuple):
    entry: FileEntry
    parts: tuple[str, ...]  # below the target directory


class _Plan(NamedTuple):
    copies: list[_Copy]
    directories: list[tuple[str, ...]]
    skipped: list[tuple[str, str]]  # path, why


@app.command()
def fetch(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42.")],
    path: Annotated[
        str,
        typer.Argument(
            metavar="[PATH]", help="A file or directory in the task's directory. [all]", show_default=False
        ),
    ] = "",
    into: Annotated[
        Path | None,
        typer.Option("--into", "-o", metavar="DIR", help="Target directory. [./task-ID; with PATH: .]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    only_list: Annotated[bool, typer.Option("--list", "-l", help="Only list the files.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Number of an earlier attempt.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", min=0, help="Rank of a task over several nodes. [0]")
    ] = None,
) -> None:
    """Copy files of a task from its node to this machine, directories with their content.

    The files are in the task's directory; `dgpu show` prints its path. Links and special files are skipped.
    """
    flags = flags_of(ctx)
    (task_id,) = parse_ids([task])
    source = _Source(connect(flags), task_id, attempt, rank)
    wanted = "/".join(part for part in path.split("/") if part not in {"", "."}) if path.strip("/") else ""
    wanted = f"/{wanted}" if path.startswith("/") else wanted  # the scheduler refuses it with an explanation
    _refuse_gone(source, wanted)
    if only_list:
        _list(source, wanted, flags)
        return
    directory = into if into is not None else Path() if wanted else Path(task_id)
    plan = _plan(source, wanted)
    if not force:
        for copy in plan.copies:
            if os.path.lexists(there := directory.joinpath(*copy.parts)):
                raise exists(there)
    with target_directory(directory) as target, _progress(plan) as advance:
        for parts in plan.directories:
            target.make_directory(parts)
        for copy in plan.copies:
            _copy(source, copy, target, force=force, advance=advance)
    _note_skipped(plan)
    _report(plan, directory, task_id, flags)


def _note_skipped(plan: _Plan) -> None:
    for skipped, why in plan.skipped[:_MAX_NOTES]:
        note(f"Skipped {one_line(skipped)}: {why}.")
    if len(plan.skipped) > _MAX_NOTES:
        note(f"Skipped {len(plan.skipped) - _MAX_NOTES} more.")


def _refuse_gone(source: _Source, wanted: str) -> None:
    if wanted:
        return
    found = source.client.file_page(source.task_id, limit=1, attempt=source.attempt, rank=source.rank)
    if found.gone:
        raise CliFailure(
            f"{found.task_id} has no files: it left its directory empty, or executor.workdir_retention deleted it "
            f"({found.node}:{found.workdir}).",
            ExitCode.NOT_FOUND,
        )


def _list(source: _Source, path: str, flags: Any) -> None:
    entries = [builtins(entry) for entry in source.entries(path)]
    columns = [
        Column("PATH", _shown, stretches=True),
        Column("KIND", lambda row: row["kind"]),
        Column("SIZE", lambda row: _size(row["size_bytes"]) if row["kind"] == "file" else "", right=True),
        Column("CHANGED", lambda row: row["modified_at"]),
    ]
    print_rows({"files": entries}, entries, columns, "path", flags)


def _shown(row: Any) -> str:
    target = f" -> {row['target']}" if row["kind"] == "link" else ""
    return f"{row['path']}{'/' if row['kind'] == 'directory' else target}"


def _plan(source: _Source, wanted: str) -> _Plan:
    """Lists all files before the first copy, so that an existing name is found before any download."""
    plan = _Plan([], [], [])
    above = PurePosixPath(wanted).parent
    pending = [wanted]
    while pending:
        listed = pending.pop()
        for entry in source.entries(listed):
            parts = safe_parts(str(PurePosixPath(entry.path).relative_to(above)) if wanted else entry.path)
            if entry.kind == "file":
                plan.copies.append(_Copy(entry, parts))
            elif entry.kind == "directory":
                plan.directories.append(parts)
                pending.append(entry.path)
            else:
                plan.skipped.append((entry.path, _why_skipped(entry)))
                if entry.path == wanted:
                    raise CliFailure(f"{wanted} cannot be copied: {_why_skipped(entry)}.", ExitCode.REFUSED)
            if len(plan.copies) > MAX_FILES:
                raise CliFailure(f"More than {MAX_FILES:,} files. Fetch its directories one by one.")
    return plan


def _why_skipped(entry: FileEntry) -> str:
    if entry.kind == "link":
        return f"it is a link to {one_line(entry.target)}"
    return "it is not a file or directory, or its name is not UTF-8"


def _copy(
    source: _Source, copy: _Copy, target: Target, *, force: bool, advance: Callable[[int], None]
) -> None:
    def counted() -> Iterator[bytes]:
        for piece in source.pieces(copy.entry.path):
            advance(len(piece))
            yield piece

    modified_s = datetime.fromisoformat(copy.entry.modified_at).timestamp()
    target.write_file(copy.parts, counted(), force=force, modified_s=modified_s)


@contextlib.contextmanager
def _progress(plan: _Plan) -> Iterator[Callable[[int], None]]:
    total = sum(copy.entry.size_bytes for copy in plan.copies)
    if not sys.stderr.isatty() or not total:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield lambda number: progress.advance(bar, number)


def _report(plan: _Plan, directory: Path, task_id: str, flags: Any) -> None:
    if flags.output == "name":
        typer.echo("\n".join(str(directory.joinpath(*copy.parts)) for copy in plan.copies))
        return
    if not flags.is_table:
        files = [
            {"path": str(directory.joinpath(*copy.parts)), "size_bytes": copy.entry.size_bytes}
            for copy in plan.copies
        ]
        skipped = [{"path": path, "reason": why} for path, why in plan.skipped]
        print_document({"task_id": task_id, "files": files, "skipped": skipped}, flags)
        return
    total = sum(copy.entry.size_bytes for copy in plan.copies)
    note(f"{plural(len(plan.copies), 'file')}, {_size(total)}, in {directory}")


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
