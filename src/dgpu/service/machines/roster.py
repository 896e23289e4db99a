"""The machines that were invited, have joined or were revoked: a small SQLite file of the scheduler.

`dgpu ca` writes it while the scheduler runs. A join begins as a token, becomes a machine when the token is exchanged,
and ends by revocation. Certificates name their join, so a renewal changes nothing here but the time of expiry, and a
revocation covers every certificate of the join. A certificate of a join that is not in the file is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from dgpu.service.machines import deeds
from dgpu.service.machines.authority import FOLDER, give_to_owner_of
from dgpu.service.machines.deeds import Deed
from dgpu.service.sqlite_files import open_to_write
from dgpu.wire.machines import JoinKind, MachineNames

FILE = "machines.sqlite"
_KEEP_S = 30 * 86_400  # of tokens and certificates that have expired
_TIMEOUT_S = 5.0
_COLUMNS = "id, nodes, token_expires_at_s, joined_at_s, certificate_expires_at_s, revoked_at_s, kind"
_TABLE = """
CREATE TABLE IF NOT EXISTS joins (
  id TEXT PRIMARY KEY,
  nodes TEXT NOT NULL,
  secret_hash BLOB NOT NULL,
  token_expires_at_s INTEGER NOT NULL,
  public_key_hash BLOB,
  joined_at_s INTEGER NOT NULL DEFAULT 0,
  certificate_expires_at_s INTEGER NOT NULL DEFAULT 0,
  revoked_at_s INTEGER NOT NULL DEFAULT 0,
  kind TEXT NOT NULL DEFAULT 'agent'
)
"""
_ADD_KIND = "ALTER TABLE joins ADD COLUMN kind TEXT NOT NULL DEFAULT 'agent'"  # a file of an earlier version

_ALL = (
    "id, nodes, secret_hash, token_expires_at_s, public_key_hash, joined_at_s, certificate_expires_at_s, revoked_at_s, "
    "kind"
)
_MERGE = f"""
INSERT INTO joins ({_ALL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  public_key_hash = coalesce(public_key_hash, excluded.public_key_hash),
  joined_at_s = max(joined_at_s, excluded.joined_at_s),
  certificate_expires_at_s = max(certificate_expires_at_s, excluded.certificate_expires_at_s),
  revoked_at_s = max(revoked_at_s, excluded.revoked_at_s)
"""  # noqa: S608 - a constant

_VERBS: Final[dict[str, str]] = {
    "agent": "dgpu agent join",
    "scheduler": "dgpu ha join",
    "witness": "dgpu ha join --witness",
}


class JoinRefused(Exception):  # noqa: N818 - it says what happened
    """The token does not work; the text says why."""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    nodes: tuple[str, ...]  # of a member of the engine: its address
    token_expires_at_s: int
    joined_at_s: int  # 0: the token is not used yet
    certificate_expires_at_s: int
    revoked_at_s: int
    kind: str = "agent"

    @property
    def names(self) -> MachineNames:
        return MachineNames(join_id=self.id, nodes=frozenset(self.nodes))

    def why_refused(self, now_s: int) -> str:
        """Why its certificates are not accepted; empty: they are."""
        if self.revoked_at_s:
            return f"the certificate of {self.shown_nodes} is revoked"
        if not self.joined_at_s:
            return f"the machine of {self.shown_nodes} has not joined"
        if now_s >= self.certificate_expires_at_s:
            return f"the certificate of {self.shown_nodes} has expired"
        return ""

    @property
    def shown_nodes(self) -> str:
        return f"node {_shown(self.nodes)}"


class StoredJoin(msgspec.Struct, frozen=True, array_like=True):
    """A whole row, for the other schedulers."""

    id: str
    nodes: str
    secret_hash: bytes
    token_expires_at_s: int
    public_key_hash: bytes | None
    joined_at_s: int
    certificate_expires_at_s: int
    revoked_at_s: int
    kind: str


class Roster:
    """Every call opens the file, which takes less than a millisecond. Calls are rare and come from threads."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = data_dir / FOLDER / FILE

    def invite(
        self, nodes: tuple[str, ...], *, now_s: int, lifetime_s: int, kind: JoinKind = "agent"
    ) -> tuple[Join, str]:
        """The join and its secret, which is not stored."""
        secret = secrets.token_urlsafe(24)
        values = (secrets.token_hex(8), _encoded(nodes), _hash(secret), now_s + lifetime_s, kind)
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM joins WHERE max(token_expires_at_s, certificate_expires_at_s) < ?",
                (now_s - _KEEP_S,),
            )
            connection.execute(
                "INSERT INTO joins (id, nodes, secret_hash, token_expires_at_s, kind) VALUES (?, ?, ?, ?, ?)",
                values,
            )
            deeds.write_deed(connection, "ca.token", _shown(nodes), now_s=now_s)
            return _one(connection, values[0]), secret

    def redeem(
        self, join_id: str, secret: str, public_key: bytes, *, now_s: int, kind: JoinKind = "agent"
    ) -> Join:
        """Uses the token up. Another call with the same key repeats the answer, which may have been lost.

        Raises JoinRefused.
        """
        key_hash = hashlib.sha256(public_key).digest()
        with self._writing() as connection:
            row = connection.execute(
                "SELECT secret_hash, public_key_hash FROM joins WHERE id = ?", (join_id,)
            ).fetchone()
            # One answer for unknown and wrong, so that ids cannot be tried out.
            if row is None or not hmac.compare_digest(row[0], _hash(secret)):
                raise JoinRefused(
                    "the join token is not known here; if another scheduler made it, try again in a few seconds"
                )
            join = _one(connection, join_id)
            if join.revoked_at_s:
                raise JoinRefused("the join token was revoked")
            if now_s >= join.token_expires_at_s:
                raise JoinRefused("the join token has expired")
            if row[1] is not None and row[1] != key_hash:
                raise JoinRefused("the join token was used before")
            if join.kind != kind:
                raise JoinRefused(
                    f"the join token is for `{_VERBS[join.kind]}`, not for `{_VERBS[kind]}`; it still works"
                )
            connection.execute(
                "UPDATE joins SET public_key_hash = ?, joined_at_s = ? WHERE id = ?",
                (key_hash, now_s, join_id),
            )
            return _one(connection, join_id)

    def note_certificate(self, join_id: str, expires_at_s: int) -> None:
        with self._writing() as connection:
            connection.execute(
                "UPDATE joins SET certificate_expires_at_s = max(certificate_expires_at_s, ?) WHERE id = ?",
                (expires_at_s, join_id),
            )

    def revoke(self, node: str, *, now_s: int) -> list[Join]:
        """Every join that names the node, tokens that were not used included."""
        found = [join for join in self.joins() if node in join.nodes and not join.revoked_at_s]
        with self._writing() as connection:
            for join in found:
                connection.execute("UPDATE joins SET revoked_at_s = ? WHERE id = ?", (now_s, join.id))
                deeds.write_deed(connection, "ca.revoke", _shown(join.nodes), now_s=now_s)
        return found

    def note_authority(self, fingerprint: str, *, now_s: int) -> None:
        with self._writing() as connection:
            deeds.write_deed(connection, "ca.init", f"authority {fingerprint[:16]}…", now_s=now_s)

    def deeds(self) -> list[Deed]:
        """Changes that the audit log has not yet taken over, the oldest first."""
        with self._open() as connection:
            return deeds.read_deeds(connection)

    def forget_deeds(self, until_id: int) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM deeds WHERE id <= ?", (until_id,))

    def find(self, join_id: str) -> Join | None:
        with self._open() as connection:
            return _find(connection, join_id)

    def fallen(self, now_s: int) -> list[Join]:
        """Machines whose certificates are no longer accepted. Few, however many machines there are."""
        query = f"SELECT {_COLUMNS} FROM joins WHERE revoked_at_s > 0 OR certificate_expires_at_s <= ?"  # noqa: S608 - a constant
        with self._open() as connection:
            rows = connection.execute(query, (now_s,)).fetchall()
        return [_join(row) for row in rows]

    def joins(self) -> list[Join]:
        with self._open() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM joins ORDER BY nodes, rowid").fetchall()  # noqa: S608 - a constant
        return [_join(row) for row in rows]

    def export(self, *, now_s: int) -> list[StoredJoin]:
        """All rows but those that `invite` would delete, in a fixed order."""
        query = f"SELECT {_ALL} FROM joins WHERE max(token_expires_at_s, certificate_expires_at_s) >= ? ORDER BY id"  # noqa: S608 - a constant
        with self._open() as connection:
            return [StoredJoin(*row) for row in connection.execute(query, (now_s - _KEEP_S,))]

    def merge(self, rows: list[StoredJoin]) -> None:
        """Takes over what another scheduler knows. Every value only grows, so the order of merges does not matter."""
        with self._writing() as connection:
            connection.executemany(_MERGE, map(msgspec.structs.astuple, rows))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = open_to_write(self._path, _prepare, timeout_seconds=_TIMEOUT_S)
        give_to_owner_of(self._data_dir, self._path)
        with contextlib.closing(connection):
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(_TABLE)
    connection.execute(deeds.TABLE)
    if not _has_kind(connection):
        try:
            connection.execute(_ADD_KIND)
        except sqlite3.OperationalError:
            if not _has_kind(connection):  # another process has just added it
                raise


def _has_kind(connection: sqlite3.Connection) -> bool:
    return "kind" in {row[1] for row in connection.execute("PRAGMA table_info(joins)")}


def _find(connection: sqlite3.Connection, join_id: str) -> Join | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM joins WHERE id = ?", (join_id,)).fetchone()  # noqa: S608 - a constant
    return None if row is None else _join(row)


def _one(connection: sqlite3.Connection, join_id: str) -> Join:
    found = _find(connection, join_id)
    assert found is not None  # noqa: S101 - in the same transaction as its row
    return found


def _join(row: tuple[Any, ...]) -> Join:
    return Join(
        id=row[0],
        nodes=tuple(msgspec.json.decode(row[1], type=list[str])),
        token_expires_at_s=row[2],
        joined_at_s=row[3],
        certificate_expires_at_s=row[4],
        revoked_at_s=row[5],
        kind=row[6],
    )


def _shown(nodes: tuple[str, ...]) -> str:
    return nodes[0] + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")


def _encoded(nodes: tuple[str, ...]) -> str:
    return msgspec.json.encode(nodes).decode()


def _hash(secret: str) -> bytes:
    """The secret is random and long, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).digest()
