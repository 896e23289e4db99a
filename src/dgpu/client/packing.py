"""Packs a project into an archive that depends only on names, contents, modes and links: equal projects have equal
archives. Standard library only.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import hashlib
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from dgpu.client.errors import BadRequest
from dgpu.client.upload_calls import Progress

IGNORE_FILE = ".dgpuignore"
MAX_ENTRIES = 200_000
_MTIME_S = 946_684_800  # 2000-01-01: times of files must not change the archive
_SHOWN = 5
_PIECE_BYTES = 1 << 20


class CannotPack(BadRequest):
    """The project cannot be uploaded. The text names the files."""


class Packed(NamedTuple):
    path: Path  # a temporary file
    sha256: str
    size_bytes: int
    files: int


@contextlib.contextmanager
def packed(directory: str | os.PathLike[str], max_bytes: int, on_progress: Progress) -> Iterator[Packed]:
    """The archive exists within the block. `max_bytes`: of the files before packing. Raises CannotPack."""
    root = Path(directory)
    if not root.is_dir():
        raise CannotPack(f"upload: {os.fspath(directory)!r} is no directory.")
    names = _project_files(root)
    sizes = {name: found.st_size for name, found in names.items() if stat.S_ISREG(found.st_mode)}
    total = sum(sizes.values())
    if total > max_bytes:
        raise CannotPack(_too_large(root, sizes, total, max_bytes))
    with tempfile.NamedTemporaryFile(prefix="dgpu-upload-") as file:
        try:
            _write(file, root, names, total, on_progress)
            file.flush()
        except OSError as error:
            raise CannotPack(f"upload: {error.filename or file.name}: {error.strerror}.") from None
        file.seek(0)
        digest = hashlib.sha256()
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        yield Packed(Path(file.name), digest.hexdigest(), file.tell(), len(names))


def _write(
    file: IO[bytes], root: Path, names: dict[str, os.stat_result], total: int, on_progress: Progress
) -> None:
    done = 0
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, found in names.items():
            entry = tarfile.TarInfo(name)
            entry.mtime = _MTIME_S
            if stat.S_ISLNK(found.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, str((root / name).readlink())
                tar.addfile(entry)
            elif stat.S_ISDIR(found.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
                with (root / name).open("rb") as content:
                    entry.size = os.fstat(content.fileno()).st_size
                    tar.addfile(entry, content)
                done += entry.size
                on_progress("packing", done, total)
            tar.members = []  # type: ignore[attr-defined]  # tarfile remembers every entry


def _project_files(root: Path) -> dict[str, os.stat_result]:
    """Relative names in a fixed order."""
    ignored = _ignore_rules(root)
    names = _listed_by_git(root)
    found: dict[str, os.stat_result] = {}
    for name in sorted(_walked(root, ignored) if names is None else names):
        if ignored(name):
            continue
        try:
            facts = os.lstat(root / name)
        except FileNotFoundError:  # git lists a file that was deleted
            continue
        _check(root, name, facts)
        found[name] = facts
        if len(found) > MAX_ENTRIES:
            raise CannotPack(f"upload: {root} has more than {MAX_ENTRIES:,} files.")
    return found


def _check(root: Path, name: str, facts: os.stat_result) -> None:
    if stat.S_ISLNK(facts.st_mode):
        inside, target = os.path.realpath(root), (root / name).readlink()
        leads_to = os.path.realpath(root / name)
        if target.is_absolute() or (leads_to != inside and not leads_to.startswith(inside + os.sep)):
            raise CannotPack(
                f"upload: the link {name!r} leads out of the project, to {str(target)!r}. Remove it, list it in "
                f"{IGNORE_FILE}, or replace it by the file."
            )
    elif not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        raise CannotPack(
            f"upload: {name!r} is no file, directory or link. Remove it, or list it in {IGNORE_FILE}."
        )


def _listed_by_git(root: Path) -> list[str] | None:
    """Tracked files and new ones that git does not ignore. None: it is no git tree, or git is not installed."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    names: list[str] = []
    for name in dict.fromkeys(os.fsdecode(listed).split("\0")):
        path = root / name
        if name.endswith("/") or (path.is_dir() and not path.is_symlink()):  # another repository in this one
            inner = _listed_by_git(path) if name else None
            names += [f"{name.rstrip('/')}/{each}" for each in inner or ()]
        elif name:
            names.append(name)
    return names


def _walked(root: Path, ignored: Callable[[str], bool]) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        base = os.path.relpath(folder, root)
        prefix = "" if base == "." else f"{base}/"
        folders[:] = [name for name in folders if name != ".git" and not ignored(f"{prefix}{name}/")]
        yield from (prefix + name for name in (*folders, *files))


def _ignore_rules(root: Path) -> Callable[[str], bool]:
    """A pattern without a slash matches names at any depth, another one a path from the top."""
    try:
        lines = (root / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return lambda _: False
    except (OSError, UnicodeDecodeError) as error:
        raise CannotPack(f"upload: {root / IGNORE_FILE} cannot be read: {error}.") from None
    patterns: list[str] = []
    for number, line in enumerate(lines, 1):
        pattern = line.strip()
        if pattern.startswith("!"):
            raise CannotPack(f"upload: {root / IGNORE_FILE}, line {number}: {pattern!r} is not supported.")
        if pattern and not pattern.startswith("#"):
            patterns.append(pattern.rstrip("/"))
    return lambda name: _is_ignored(name.rstrip("/"), patterns)


def _is_ignored(name: str, patterns: Iterable[str]) -> bool:
    parts = name.split("/")
    tops = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    for pattern in patterns:
        if "/" in pattern:
            if any(fnmatch.fnmatchcase(top, pattern.lstrip("/")) for top in tops):
                return True
        elif any(fnmatch.fnmatchcase(part, pattern) for part in parts):
            return True
    return False


def _too_large(root: Path, sizes: dict[str, int], total: int, max_bytes: int) -> str:
    counting = [name for name in sizes if sizes[name] * 100 > total]
    largest = sorted(counting or sizes, key=lambda name: -sizes[name])[:_SHOWN]
    shown = ", ".join(f"{name} ({in_units(sizes[name])})" for name in largest)
    return (
        f"upload: {root} has {in_units(total)} in {len(sizes):,} files, at most {in_units(max_bytes)} are allowed. The "
        f"largest: {shown}. Leave out data with .gitignore or {IGNORE_FILE}, and read it from a shared file system."
    )


def in_units(count: int) -> str:
    if count < 1_000:
        return f"{count} bytes"
    shown, unit = count / 1_000, "KB"
    for larger in ("MB", "GB"):
        if shown >= 1_000:
            shown, unit = shown / 1_000, larger
    return f"{shown:,.1f} {unit}"
