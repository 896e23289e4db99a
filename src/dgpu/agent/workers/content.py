"""Sends a large result to the scheduler."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import structlog

from dgpu.agent.upload_cache import UploadCache
from dgpu.agent.workers.files import PIECE_BYTES
from dgpu.agent.workers.words import PutResult
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

PUT_CONTENT = "/dgpu.agent.v1.Agents/PutContent"
_TIMEOUT_SECONDS = 600.0
_FOR_NOW = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAUTHENTICATED,  # of a session that has just ended
}

_log = structlog.get_logger("dgpu.agent")


class ContentRefused(Exception):  # noqa: N818 - a fact about the scheduler
    """One line for people."""


async def put_content(uploads: UploadCache, node_id: NodeId, asked: PutResult, descriptor: int) -> bool:
    """False: not now, try again. Raises ContentRefused."""
    connection = uploads.connection(node_id)
    if connection is None:
        return False
    channel, session_id = connection
    method = channel.stream_unary(
        PUT_CONTENT,
        request_serializer=pb.ContentPut.SerializeToString,
        response_deserializer=pb.ContentPutDone.FromString,
    )
    first = pb.ContentPut(
        node_id=node_id,
        session_id=session_id,
        lease_id=asked.lease_id,
        sha256=asked.sha256,
        size=asked.size,
    )
    try:
        await method(_pieces(first, descriptor), timeout=_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise ContentRefused("the scheduler is of an older version and takes no large results") from None
        if error.code() not in _FOR_NOW:
            raise ContentRefused(
                error.details() or f"the scheduler refused it: {error.code().name}"
            ) from None
        _log.debug("result_interrupted", lease=asked.lease_id, code=error.code().name, reason=error.details())
        return False
    except grpc.aio.UsageError:  # the session has closed its channel, and the next one is not there yet
        return False
    except asyncio.CancelledError:
        # gRPC also raises it when the session closes the channel of a call in progress.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return False
    return True


async def _pieces(first: pb.ContentPut, descriptor: int) -> AsyncIterator[pb.ContentPut]:
    yield first
    offset = 0
    while piece := await asyncio.to_thread(os.pread, descriptor, PIECE_BYTES, offset):
        offset += len(piece)
        yield pb.ContentPut(data=piece)
