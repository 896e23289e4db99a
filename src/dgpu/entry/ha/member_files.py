"""The files of one member below the directory of a scheduler or witness.

engine.json      who this member is, and whether it has ever started: outside of the engine's directory, so that an
                 emptied disk is noticed
engine/data      of etcd
engine/tls       certificate of this member, of the cluster's authority
engine/etcd.log  bounded
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dgpu.entry.ha.errors import HaFailure
from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.service.machines.member_marker import (
    MARKER_NAME,
    MarkerDamaged,
    Member,
    read_marker,
    write_marker,
)

FOLDER = "engine"


class MemberFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marker = directory / MARKER_NAME
        self.folder = directory / FOLDER
        self.data = self.folder / "data"
        self.tls = self.folder / "tls"
        self.log = self.folder / "etcd.log"
        self.hold = self.folder / "etcd.hold"

    @property
    def certificate(self) -> Path:
        return self.tls / "member.pem"

    @property
    def key(self) -> Path:
        return self.tls / "member.key"

    @property
    def authority(self) -> Path:
        return self.tls / "ca.pem"

    @property
    def has_data(self) -> bool:
        """Whether etcd has written its log there."""
        wal = self.data / "member" / "wal"
        return wal.is_dir() and any(path.suffix == ".wal" for path in wal.iterdir())

    @property
    def has_certificate(self) -> bool:
        return all(path.exists() for path in (self.certificate, self.key, self.authority))

    def read(self) -> Member | None:
        """None: this directory has no member."""
        try:
            return read_marker(self.directory)
        except MarkerDamaged as error:
            raise HaFailure(f"{error}. Restore it, or replace this member: dgpu ha replace-member") from error

    def member(self) -> Member:
        found = self.read()
        if found is None:
            raise HaFailure(
                f"{self.directory} has no member of a cluster. Found one: dgpu ha init; or join one: dgpu ha join"
            )
        return found

    def write(self, member: Member) -> None:
        write_marker(self.directory, member)

    def note_started(self) -> None:
        """Called when the data exist. A new member cannot vote before that: it is the only one, or it is a learner."""
        member = self.member()
        if not member.started:
            self.write(msgspec.structs.replace(member, started=True))

    def forget(self) -> None:
        """From now on the directory has no member. The data of etcd stay for a look."""
        self.marker.unlink(missing_ok=True)
        sync_folder(self.directory)

    def write_certificate(self, *, key_pem: bytes, certificate_pem: bytes, authority_pem: bytes) -> None:
        make_folder(self.tls)
        for path, content in (
            (self.key, key_pem),
            (self.certificate, certificate_pem),
            (self.authority, authority_pem),
        ):
            write_file(path, content)
        sync_folder(self.tls)
