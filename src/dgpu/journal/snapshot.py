"""The whole state at one journal index, as JSON that people can read: one line for each task, node, GPU and lease.

The file ends with a line that contains the CRC-32 of everything before it. The digest inside is compared with the state
that was read: a snapshot is accepted only if both match.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import msgspec

from dgpu.core.digest import digest
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.task import Task
from dgpu.core.parts import LATER_PARTS, PART_NAMES, Parts
from dgpu.core.state import ClusterState
from dgpu.journal.durable import sync_folder, write_file
from dgpu.journal.errors import NewerVersion, SnapshotDamaged
from dgpu.journal.journal import collector_off
from dgpu.journal.key_files import (
    KeyFile,
    KeyFiles,
    KeysDamaged,
    StoredKeys,
    inline_keys,
    read_keys,
    read_what_is_left,
)
from dgpu.journal.segments import ARCHIVE_FOLDER
from dgpu.wire.records import SCHEMA

FORMAT_NAME = "dgpu-snapshot-"
FORMAT = f"{FORMAT_NAME}{SCHEMA}"  # same content as the journal's schema
SNAPSHOT_NAME = "snapshot.json"
PREVIOUS_NAME = "snapshot.prev.json"
DAMAGED_NAME = "snapshot.damaged.json"

_ARCHIVED = re.compile(r"snapshot-(\d{20})\.json\.gz")
_SEAL = re.compile(rb'\n,"crc":"([0-9a-f]{8})"}\n')
SEAL_BYTES = len(b'\n,"crc":"00000000"}\n')

# A task, with its detail as JSON instead of a base64 string, so that people can read it.
_StoredTask: Any = msgspec.defstruct(
    "StoredTask",
    [
        (field.name, msgspec.Raw) if field.name == "detail" else
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(Task)
    ],
    kw_only=True,
    omit_defaults=True,
    gc=False,
    forbid_unknown_fields=True,
)  # fmt: skip


_BY_ID = {
    "tasks": _StoredTask,
    "nodes": Node,
    "gpus": Gpu,
    "leases": Lease,
}  # lists: each value knows its own id


def _stored_type(name: str, part: Any) -> Any:
    return list[_BY_ID[name]] if name in _BY_ID else part  # type: ignore[valid-type]


def _stored_field(name: str, part: Any) -> tuple[Any, ...]:
    """A part that a snapshot of an earlier version lacks is empty."""
    empty = (LATER_PARTS[name],) if name in LATER_PARTS else ()  # msgspec creates a new {} for each value
    return (name, _stored_type(name, part), *empty)


_StoredState: Any = msgspec.defstruct(
    "StoredState",
    [_stored_field(name, part) for name, part in get_type_hints(Parts).items()],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a snapshot."""

    format: str
    index: int = 0
    epoch: int = 0
    key_ring: StoredKeys | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    index: int
    epoch: int
    at: int
    digest: str
    state: _StoredState
    key_ring: StoredKeys | None = None
    crc: str = ""  # of all bytes before it


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    index: int
    epoch: int
    at: int
    state: ClusterState
    key_files: tuple[KeyFile, ...] | None = None  # None: no files contain exactly its keys


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(SnapshotHead)
_decoder = msgspec.json.Decoder(_File)


def encode_snapshot(state: ClusterState, *, index: int, epoch: int, keys: StoredKeys | None = None) -> bytes:
    """Without `keys`, the idempotency keys are in the snapshot itself."""
    head = {
        "format": FORMAT,
        "index": index,
        "epoch": epoch,
        "at": state.last_at,
        "digest": digest(state, with_keys=False),
        "key_ring": keys or inline_keys(state.key_ring),
    }
    # Small parts first, so that a reader of the file sees the numbers before a hundred thousand tasks.
    names = sorted(PART_NAMES, key=lambda name: (isinstance(getattr(state, name), dict), name))
    members = (b'"%b":%b' % (name.encode(), _encode_part(name, getattr(state, name))) for name in names)
    body = b'%b,"state":{\n%b}' % (_encoder.encode(head)[:-1], b",\n".join(members))
    return b'%b\n,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def decode_snapshot(
    content: bytes, file: str, directory: Path | None = None, *, any_keys: bool = False
) -> Snapshot:
    """Raises SnapshotDamaged for any difference from the written file.

    `directory` has the files of idempotency keys. `any_keys`: missing keys are accepted.
    """
    if damage := _damage_of(content):
        raise SnapshotDamaged(file, damage)
    with collector_off():
        try:
            _check_format(_head_decoder.decode(content).format, file)
            stored = _decoder.decode(content)
        except msgspec.DecodeError as error:
            raise SnapshotDamaged(file, f"cannot be read by this version: {error}") from error
        state = _state(stored.state)
        if digest(state, with_keys=False) != stored.digest:
            raise SnapshotDamaged(file, "does not match its state (digests differ)")
        state.adopt_old_keys()
        keys = stored.key_ring
        if any_keys and directory is not None:
            from_at = stored.at - state.settings.idempotency_ms
            read_what_is_left(state.key_ring, directory, upto_at=stored.at, from_at=from_at)
        elif keys is not None:
            read_keys(state.key_ring, keys, directory, file)
    return Snapshot(
        file=file,
        index=stored.index,
        epoch=stored.epoch,
        at=stored.at,
        state=state,
        key_files=None if any_keys or keys is None or keys.inline else keys.files,
    )


def _check_format(name: str, file: str) -> None:
    number = name.removeprefix(FORMAT_NAME)
    if name == number or not number.isdecimal():
        raise SnapshotDamaged(file, f"has the format {name!r}, this version reads up to {FORMAT!r}")
    if int(number) > SCHEMA:
        raise NewerVersion(file, f"it has the format {name!r}, this version reads up to {FORMAT!r}")


def write_snapshot(
    directory: Path, state: ClusterState, *, index: int, epoch: int, key_files: KeyFiles | None = None
) -> str:
    """Replaces the newest snapshot and keeps the previous one. A failure leaves both unchanged.

    A damaged newest snapshot does not become the previous one: the valid older one stays, and the damaged file is
    renamed. Returns a note about that, or an empty text.
    """
    newest, previous = directory / SNAPSHOT_NAME, directory / PREVIOUS_NAME
    ready = directory / "snapshot.new.json"
    key_files = key_files or KeyFiles(directory)
    keys = key_files.save(state.key_ring)
    content = encode_snapshot(state, index=index, epoch=epoch, keys=keys)
    _decoder.decode(
        content
    )  # 40 ms for 100,000 tasks: an unreadable snapshot must never replace a readable one
    write_file(ready, content)
    damage = ""
    if newest.exists():
        damage = seal_damage(newest)
        # A second name for the old file instead of a rename, so that a newest snapshot always exists.
        twin = directory / "snapshot.prev.new.json"
        with contextlib.suppress(FileNotFoundError):
            twin.unlink()
        os.link(newest, twin)
        twin.replace(directory / DAMAGED_NAME if damage else previous)
    ready.replace(newest)
    sync_folder(directory)
    key_files.clean([keys, _keys_named_in(previous)])
    if damage:
        return f"{newest} {damage}; it was set aside as {DAMAGED_NAME}, and {PREVIOUS_NAME} was kept"
    return ""


def seal_damage(path: Path) -> str:
    """The damage of a snapshot file; empty if its CRC matches. Cheap: nothing is decoded."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error}"
    return _damage_of(content)


def _damage_of(content: bytes) -> str:
    body, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    if _SEAL.fullmatch(seal) is None:
        return "is cut short or its last line is damaged"
    return "" if is_sealed(seal, zlib.crc32(body)) else "does not match its CRC"


def is_sealed(seal: bytes, crc: int) -> bool:
    """Whether the last line of a snapshot matches the CRC of everything before it."""
    found = _SEAL.fullmatch(seal)
    return found is not None and int(found[1], 16) == crc


def load_snapshot(path: Path, *, any_keys: bool = False) -> Snapshot:
    is_archived = path.suffix == ".gz"
    directory = path.parent.parent if is_archived else path.parent
    try:
        content = path.read_bytes()
        if is_archived:
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotDamaged(str(path), f"cannot be read: {error}") from error
    return decode_snapshot(content, str(path), directory, any_keys=any_keys or is_archived)


def snapshot_index(path: Path) -> int:
    """The index in the first line of a snapshot; 0 if there is none. Not verified."""
    try:
        with path.open("rb") as file:
            found = re.search(rb'"index":(\d+)', file.read(200))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _keys_named_in(path: Path) -> StoredKeys | None:
    try:
        with path.open("rb") as file:
            return read_head(file, str(path)).key_ring
    except (OSError, SnapshotDamaged):
        return None


def read_head(file: BinaryIO, name: str) -> SnapshotHead:
    """Of an open snapshot. Raises SnapshotDamaged."""
    line = file.readline().rstrip().removesuffix(b',"state":{')
    try:
        return _head_decoder.decode(line + b"}")
    except msgspec.DecodeError as error:
        raise SnapshotDamaged(name, f"cannot be read by this version: {error}") from error


def archived_snapshots(directory: Path) -> list[tuple[int, Path]]:
    """States next to the archived segments, so that a replay can begin there; oldest first."""
    folder = directory / ARCHIVE_FOLDER
    if not folder.is_dir():
        return []
    found = [(_ARCHIVED.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(name[1]), path) for name, path in found if name)


def archived_snapshot_name(index: int) -> str:
    return f"snapshot-{index:020}.json.gz"


def load_newest(directory: Path) -> tuple[Snapshot, tuple[str, ...]]:
    """The newest valid snapshot, and notes about damaged ones.

    Without any, everything is replayed from the first group; if that is not possible, the journal reports it.
    """
    notes: list[str] = []
    without_keys: Path | None = None
    usual = [directory / SNAPSHOT_NAME, directory / PREVIOUS_NAME]
    paths = [path for path in usual if path.exists()]
    if paths and paths[0] != usual[0]:
        notes.append(f"{usual[0]} is missing")
    archived = [path for _, path in reversed(archived_snapshots(directory))]
    for path in [*paths, *archived]:
        if without_keys is not None and path in archived:
            break
        try:
            snapshot = load_snapshot(path)
        except SnapshotDamaged as error:
            if isinstance(error, KeysDamaged):
                without_keys = without_keys or path
            notes.append(f"{error}; an older state is used")
        else:
            if notes:
                notes.append(f"recovering from {path}, group {snapshot.index}")
            return snapshot, tuple(notes)
    if without_keys is not None:
        notes.append(
            f"recovering from {without_keys} with the remaining idempotency keys: a submit that is repeated with a "
            "lost key creates a second task"
        )
        return load_snapshot(without_keys, any_keys=True), tuple(notes)
    if notes:
        notes.append("no snapshot can be used; replaying from the first group")
    return no_snapshot(), tuple(notes)


def no_snapshot() -> Snapshot:
    """The start of a journal: an empty state."""
    return Snapshot(file="", index=0, epoch=0, at=0, state=ClusterState(), key_files=())


def _encode_part(name: str, part: Any) -> bytes:
    encode = _encoder.encode
    if name == "tasks":
        return b"[\n%b\n]" % b",\n".join(_task_lines(part.values()))
    if name in _BY_ID:
        return b"[\n%b\n]" % b",\n".join(map(encode, part.values()))
    if isinstance(part, dict):
        members = (encode(str(key)) + b":" + encode(value) for key, value in part.items())
        return b"{\n%b\n}" % b",\n".join(members)
    return encode(part)


def _task_lines(tasks: Iterable[Task]) -> Iterator[bytes]:
    encode, as_dict, raw = _encoder.encode, msgspec.structs.asdict, msgspec.Raw
    for task in tasks:
        fields = as_dict(task)
        detail = task.detail
        fields["detail"] = raw(detail if detail.startswith(b"{") else encode(detail))
        yield encode(_StoredTask(**fields))


def _state(stored: Any) -> ClusterState:
    parts = {name: getattr(stored, name) for name in PART_NAMES}
    for name in _BY_ID.keys() - {"tasks"}:
        parts[name] = {value.id: value for value in parts[name]}
    parts["tasks"] = {task.id: task for task in _tasks_of(parts["tasks"])}
    return ClusterState.from_parts(Parts(**parts))


def _tasks_of(stored: list[Any]) -> list[Task]:
    """Equal details share one object: a batch of 10,000 equal tasks has one copy of its command."""
    details: dict[bytes, bytes] = {}
    for task in stored:
        raw = bytes(task.detail)
        detail = raw if raw.startswith(b"{") else msgspec.json.decode(raw, type=bytes)
        task.detail = details.setdefault(detail, detail)
    return msgspec.convert(stored, list[Task], from_attributes=True)  # all at once: 2.5 times as fast
