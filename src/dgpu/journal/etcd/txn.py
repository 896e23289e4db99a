"""Transactions of etcd, in short form."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.wire.proto import etcd_pb2 as pb


def created_at(key: bytes, revision: int) -> pb.Compare:
    """Revision 0: the key does not exist."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, create_revision=revision)


def modified_at(key: bytes, revision: int) -> pb.Compare:
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)


def get(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def put(key: bytes, value: bytes, *, lease_id: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease_id))


def delete(key: bytes, range_end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=range_end))


def txn(
    when: Sequence[pb.Compare], then: Sequence[pb.RequestOp], otherwise: Sequence[pb.RequestOp]
) -> pb.TxnRequest:
    return pb.TxnRequest(compare=when, success=then, failure=otherwise)


def found_in(answer: pb.TxnResponse, number: int) -> pb.KeyValue | None:
    """The key that the n-th operation of the executed branch read."""
    kvs = answer.responses[number].response_range.kvs
    return kvs[0] if kvs else None
