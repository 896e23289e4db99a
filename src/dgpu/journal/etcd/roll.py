"""The schedulers of a cluster as they announce themselves, and the state of each member of etcd.

It is for people and alerts: no decision depends on it. A scheduler writes its row every few seconds under
<prefix>scheduler/<URL>. The row of a scheduler that is gone stays until another one deletes it.
"""

from __future__ import annotations

import msgspec

from dgpu.journal.announced import Announced, MemberHealth, Row
from dgpu.journal.engine import EngineError, EngineFull
from dgpu.journal.etcd.connection import Connection, NoSpace
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.etcd.txn import delete, modified_at, put, txn
from dgpu.wire.proto import etcd_pb2 as pb

MAX_SCHEDULERS = 50  # rows that are read
_NO_LEADER = "no leader"


class Roll:
    """Calls block for a few seconds at most and may raise EngineError."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._rows = settings.prefix.encode() + b"scheduler/"

    def announce(self, row: Announced) -> None:
        request = txn([], [put(self._rows + row.http.encode(), msgspec.json.encode(row))], [])
        try:
            self._connection.call("/etcdserverpb.KV/Txn", request, pb.TxnResponse)
        except NoSpace as error:
            raise EngineFull("the quota of etcd is used up") from error

    def schedulers(self) -> list[Row]:
        """By name and URL. Rows that this version cannot read are left out."""
        behind = self._rows[:-1] + b"0"  # the character behind the slash
        request = pb.RangeRequest(key=self._rows, range_end=behind, limit=MAX_SCHEDULERS)
        found = self._connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
        rows = []
        for kv in found:
            try:
                announced = msgspec.json.decode(kv.value, type=Announced)
            except msgspec.DecodeError:
                continue
            rows.append(Row(announced=announced, revision=kv.mod_revision))
        return sorted(rows, key=lambda row: (row.announced.name, row.announced.http))

    def forget(self, row: Row) -> None:
        """Deletes a row that was not written again meanwhile."""
        key = self._rows + row.announced.http.encode()
        request = txn([modified_at(key, row.revision)], [delete(key)], [])
        self._connection.call("/etcdserverpb.KV/Txn", request, pb.TxnResponse)

    def members(self) -> tuple[MemberHealth, ...]:
        """Asks every endpoint. One that does not answer is a row with its trouble."""
        asked = self._connection.ask_each(
            "/etcdserverpb.Maintenance/Status", pb.StatusRequest(), pb.StatusResponse
        )
        return tuple(self._health(url, answer) for url, answer in asked)

    def close(self) -> None:
        self._connection.close()

    def _health(self, url: str, answer: pb.StatusResponse | EngineError) -> MemberHealth:
        address = url.partition("://")[2]
        if isinstance(answer, EngineError):
            return MemberHealth(
                address=address, trouble=_brief(str(answer)), has_leader=_NO_LEADER not in str(answer)
            )
        return MemberHealth(
            address=address,
            version=answer.version,
            is_leader=answer.leader == answer.header.member_id,
            is_learner=answer.isLearner,
            has_leader=bool(answer.leader),
            db_bytes=answer.dbSize,
            quota_bytes=answer.dbSizeQuota or self._settings.quota_bytes,
            alarms=tuple(answer.errors),
            trouble="" if answer.leader else "it sees no leader",
        )


def _brief(text: str) -> str:
    """The last part of gRPC's chain of reasons: the others repeat the address."""
    return text.rpartition(": ")[2] if "failed to connect" in text else text
