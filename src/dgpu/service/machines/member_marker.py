"""Who the engine member of a directory is: one small synced file outside the engine's own directory.

It stays when the engine's disk is emptied, so that the loss is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dgpu.journal.durable import make_folder, sync_folder, write_file

MARKER_NAME = "engine.json"

Role = Literal["scheduler", "witness"]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """`first_peers`: the members of its first start, which etcd ignores later."""

    cluster: str  # of the engine: members of another one are refused
    role: Role
    me: str
    members: tuple[str, ...]  # all three addresses
    first_peers: tuple[str, ...]
    is_first: bool  # it founded the cluster
    started: bool = False


class MarkerDamaged(Exception):  # noqa: N818 - it names the thing
    pass


def read_marker(directory: Path) -> Member | None:
    """None: the directory has no member. Raises MarkerDamaged."""
    path = directory / MARKER_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Member)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise MarkerDamaged(f"{path} cannot be read: {error}") from error


def write_marker(directory: Path, member: Member) -> None:
    """Durable when it returns."""
    make_folder(directory)
    write_file(directory / MARKER_NAME, msgspec.json.encode(member) + b"\n")
    sync_folder(directory)
