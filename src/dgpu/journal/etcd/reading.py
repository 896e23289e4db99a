"""Groups read from etcd, in answers of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec

from dgpu.journal.engine import BelowFloor, EngineError
from dgpu.journal.etcd.connection import AnswerTooLarge, Connection
from dgpu.journal.etcd.keys import GroupValue, Keys, unpack
from dgpu.wire.proto import etcd_pb2 as pb

_WANTED_BYTES = 8 << 20
_FIRST_LIMIT = 32  # groups have up to 1 MiB
_MAX_LIMIT = 256  # bounds the memory that a member needs for one answer
_READ_S = 10.0


class GroupReader:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._limit = _FIRST_LIMIT

    def records(self, first_index: int, last_index: int, floor: Callable[[], int]) -> list[bytes]:
        if last_index < first_index:
            return []
        kvs = self._range(first_index, last_index)
        if not kvs or self._keys.index_of_group(kvs[0].key) != first_index:
            lowest = floor()
            if first_index < lowest:
                raise BelowFloor(first_index, lowest)
            if kvs:
                raise EngineError(f"etcd has no group {first_index}, although its first one is {lowest}")
            return []
        records: list[bytes] = []
        size = 0
        for index, kv in enumerate(kvs, first_index):
            if self._keys.index_of_group(kv.key) != index:
                raise EngineError(f"etcd has no group {index}, but later ones")
            record = self._record(index, kv.value, floor)
            if records and size + len(record) > _WANTED_BYTES:
                break
            records.append(record)
            size += len(record)
        return records

    def _range(self, first_index: int, last_index: int) -> list[pb.KeyValue]:
        """As many groups as should make about 8 MiB, judging by the answer before."""
        while True:
            limit = self._limit
            request = pb.RangeRequest(
                key=self._keys.group(first_index), range_end=self._keys.group(last_index + 1), limit=limit
            )
            try:
                answer = self._connection.call(
                    "/etcdserverpb.KV/Range", request, pb.RangeResponse, attempt_s=_READ_S
                )
            except AnswerTooLarge:
                self._limit = max(1, limit // 8)
                continue
            kvs = list(answer.kvs)
            if kvs:
                mean_bytes = sum(len(kv.value) for kv in kvs) // len(kvs) + 1
                self._limit = max(1, min(_MAX_LIMIT, _WANTED_BYTES // mean_bytes))
            return kvs

    def _record(self, index: int, value: bytes, floor: Callable[[], int]) -> bytes:
        try:
            group = msgspec.msgpack.decode(value, type=GroupValue)
            body = group.body
            if group.parts:
                body = b"".join(
                    self._part(index, group.part_name, number, floor) for number in range(group.parts)
                )
            return unpack(body, is_packed=group.is_packed)
        except (msgspec.DecodeError, zlib.error) as error:
            raise EngineError(f"etcd, group {index}: {error}") from error

    def _part(self, index: int, name: str, number: int, floor: Callable[[], int]) -> bytes:
        request = pb.RangeRequest(key=self._keys.part(name, number))
        found = self._connection.call(
            "/etcdserverpb.KV/Range", request, pb.RangeResponse, attempt_s=_READ_S
        ).kvs
        if found:
            return bytes(found[0].value)
        lowest = floor()
        if index < lowest:
            raise BelowFloor(index, lowest)  # deleted meanwhile
        raise EngineError(f"etcd, group {index}: part {number} is missing")
