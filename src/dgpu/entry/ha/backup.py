"""`dgpu ha backup` and `restore`: the state of a cluster in one private file, whatever keeps its journal.

A backup is a snapshot at the last group that the directory has, with the history, the keys and the authority. It holds
no file of the engine. The directory that a restore makes belongs to a single scheduler.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dgpu import __version__
from dgpu.core.digest import digest
from dgpu.core.state import ClusterState
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.rebuilding import rebuild_directory
from dgpu.journal.durable import PRIVATE_FOLDER, make_folder, sync_folder, write_file
from dgpu.journal.errors import JournalError, NewerVersion
from dgpu.journal.segments import JOURNAL_FOLDER
from dgpu.journal.snapshot import encode_snapshot
from dgpu.service.access.key_file import KEY_NAME as TOKEN_KEY
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.machines.authority import FILE as AUTHORITY_FILE
from dgpu.service.machines.authority import FOLDER as AUTHORITY_FOLDER
from dgpu.service.machines.roster import FILE as ROSTER_FILE
from dgpu.service.recovery.cluster_file import CLUSTER_NAME
from dgpu.service.recovery.lost_tail import readable_state
from dgpu.service.secrets.vault import KEY_NAME as SECRETS_KEY

FORMAT = "dgpu-backup-1"
_MANIFEST = "manifest.json"
_STATE = "state.json"
# Copied before the state is read: these may be behind it, never ahead of it.
_DATABASES = (HISTORY_NAME, f"{AUTHORITY_FOLDER}/{ROSTER_FILE}")
_FILES = (CLUSTER_NAME, TOKEN_KEY, SECRETS_KEY, f"{AUTHORITY_FOLDER}/{AUTHORITY_FILE}")
_NAMES = {_STATE, *_DATABASES, *_FILES}
_ATTEMPTS = 5  # the follower may move a segment while it is read
_PAUSE_S = 0.2
_MAX_MANIFEST_BYTES = 1 << 20


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    cluster_id: str
    index: int  # of the last group
    epoch: int
    tasks: int
    digest: str  # of the state
    made_at: str
    version: str
    sha256: dict[str, str]  # by name


def back_up(directory: Path, target: Path) -> Manifest:
    """Works while the scheduler runs. Replaces no file. Raises HaFailure."""
    if target.exists():
        raise HaFailure(f"{target} exists already; a backup replaces no file")
    if not (directory / JOURNAL_FOLDER).is_dir():
        raise HaFailure(f"{directory} is not the directory of a scheduler: it has no journal")
    try:
        with _beside(target) as staging:
            for name in _DATABASES:
                _copy_database(directory / name, staging / name)
            for name in _FILES:
                if (directory / name).exists():
                    make_folder((staging / name).parent)
                    shutil.copyfile(directory / name, staging / name)
            state, index = _state_of(directory)
            write_file(staging / _STATE, encode_snapshot(state, index=index, epoch=state.epoch))
            manifest = _manifest(staging, state, index)
            _pack(staging, manifest, target)
    except OSError as error:
        raise HaFailure(f"{error.filename or target}: {error.strerror}. Nothing was kept") from error
    except (JournalError, sqlite3.Error) as error:
        raise HaFailure(f"{directory} cannot be read: {error}") from error
    return manifest


def restore(source: Path, directory: Path) -> Manifest:
    """Makes the directory of a single scheduler. It must not exist, or be empty. Raises HaFailure."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise HaFailure(f"{directory} is not empty; a restore replaces nothing. Move it away first")
    try:
        with _beside(directory) as staging:
            manifest = _unpack(source, staging)
            _rebuild(staging, manifest)
            if directory.exists():
                directory.rmdir()
            staging.rename(directory)
            sync_folder(directory.parent)
    except OSError as error:
        raise HaFailure(f"{error.filename or source}: {error.strerror}. Nothing was restored") from error
    return manifest


def _state_of(directory: Path) -> tuple[ClusterState, int]:
    for attempt in range(_ATTEMPTS):
        try:
            return readable_state(directory)
        except NewerVersion:
            raise
        except (JournalError, FileNotFoundError):
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError


def _copy_database(path: Path, target: Path) -> None:
    """A consistent copy, also while another process writes."""
    if not path.exists():
        return
    make_folder(target.parent)
    with (
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


def _manifest(staging: Path, state: ClusterState, index: int) -> Manifest:
    names = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
    return Manifest(
        format=FORMAT,
        cluster_id=state.cluster_id,
        index=index,
        epoch=state.epoch,
        tasks=len(state.tasks),
        digest=digest(state),
        made_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        version=__version__,
        sha256={name: _sha256(staging / name) for name in names},
    )


def _pack(staging: Path, manifest: Manifest, target: Path) -> None:
    """Complete or absent; it holds keys, so only its owner may read it."""
    fresh = target.with_name(target.name + ".part")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as archive:
                content = msgspec.json.encode(manifest)
                entry = tarfile.TarInfo(_MANIFEST)
                entry.size, entry.mode = len(content), 0o600
                archive.addfile(entry, io.BytesIO(content))
                for name in manifest.sha256:
                    archive.add(staging / name, name, recursive=False)
            file.flush()
            os.fsync(file.fileno())
        target.hardlink_to(fresh)  # unlike a rename, it never replaces a file that has just appeared
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(target.parent)


def _unpack(source: Path, staging: Path) -> Manifest:
    try:
        with tarfile.open(source, "r:gz") as archive:
            manifest = _read_manifest(archive, source)
            for entry in archive:
                if entry.name == _MANIFEST:
                    continue
                if entry.name not in manifest.sha256 or not entry.isfile():
                    raise HaFailure(f"{source} contains {entry.name!r}, which its list does not name")
                make_folder((staging / entry.name).parent)
                content = archive.extractfile(entry)
                with (staging / entry.name).open("wb") as file:
                    shutil.copyfileobj(content or io.BytesIO(), file)
                    (staging / entry.name).chmod(0o600)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise HaFailure(f"{source} is not a complete backup: {error}") from error
    for name, wanted in manifest.sha256.items():
        if not (staging / name).exists() or _sha256(staging / name) != wanted:
            raise HaFailure(f"{source} is damaged: {name} is missing or has changed")
    return manifest


def _read_manifest(archive: tarfile.TarFile, source: Path) -> Manifest:
    entry = archive.next()
    content = archive.extractfile(entry) if entry is not None and entry.name == _MANIFEST else None
    if content is None:
        raise HaFailure(f"{source} is not a backup of dgpu")
    try:
        manifest = msgspec.json.decode(content.read(_MAX_MANIFEST_BYTES), type=Manifest)
    except msgspec.DecodeError as error:
        raise HaFailure(f"{source} is not a backup that this version can read: {error}") from error
    if manifest.format != FORMAT:
        raise HaFailure(f"{source} has the format {manifest.format!r}; this version reads {FORMAT!r}")
    if unknown := set(manifest.sha256) - _NAMES:
        raise HaFailure(f"{source} names {min(unknown)!r}, which is no part of a backup")
    return manifest


def _rebuild(staging: Path, manifest: Manifest) -> None:
    path = staging / _STATE
    snapshot = rebuild_directory(staging, path.read_bytes(), str(path))
    if digest(snapshot.state) != manifest.digest or snapshot.index != manifest.index:
        raise HaFailure("the state in the backup differs from the one that was saved")
    path.unlink()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A private directory on the same disk, deleted at the end unless it was renamed."""
    path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
