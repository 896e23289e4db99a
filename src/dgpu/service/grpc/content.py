"""Sends stored content to nodes, and stores large results of function calls. A node gets only the content of a task
whose lease it holds, and stores only results of such calls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from dgpu.core.model.ids import LeaseId, TenantId
from dgpu.core.state import ClusterState
from dgpu.service.content.store import ContentMismatch, ContentStore, ContentStoreFull, ContentTooLarge
from dgpu.service.content.uses import used_content
from dgpu.service.loop.runtime import Runtime
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.uploads import DIGEST, PIECE_BYTES, args_ref_of, upload_of

# The first message of a call that belongs to a session.
Hello: TypeAlias = pb.FilesHello | pb.ChannelsHello | pb.ContentRequest | pb.ContentPut


class NoContent(Exception):  # noqa: N818 - the name states the failure
    """The text is for the user of the task."""


async def content_pieces(
    runtime: Runtime, store: ContentStore | None, request: pb.ContentRequest
) -> AsyncIterator[pb.ContentPiece]:
    """One piece is in memory at a time: gRPC waits for the reader. Raises NoContent."""

    def look(state: ClusterState) -> tuple[TenantId, str] | None:
        lease = state.leases.get(LeaseId(request.lease_id))
        if lease is None or lease.node_id != request.node_id:
            return None
        task = state.tasks[lease.task_id]
        return state.shapes[task.shape_id].tenant_id, upload_of(task.detail) or args_ref_of(task.detail)

    found = await runtime.read(look)
    if found is None or not found[1]:
        raise NoContent("the node holds no lease of a task with an upload")
    descriptor = None if store is None else await asyncio.to_thread(store.open, *found)
    if descriptor is None:
        raise NoContent(
            f"the upload {found[1][:12]}… of this task is no longer at the scheduler; submit it again with --upload"
        )
    try:
        size, offset = os.fstat(descriptor).st_size, request.offset
        while True:
            data = await asyncio.to_thread(os.pread, descriptor, PIECE_BYTES, offset)
            yield pb.ContentPiece(size=size, data=data)
            offset += len(data)
            if not data or offset >= size:
                return
    finally:
        os.close(descriptor)


async def put_content(
    runtime: Runtime, store: ContentStore | None, first: pb.ContentPut, rest: AsyncIterator[pb.ContentPut]
) -> int:
    """The stored size. Raises NoContent."""
    digest, size = first.sha256, first.size

    def look(state: ClusterState) -> TenantId | None:
        lease = state.leases.get(LeaseId(first.lease_id))
        if lease is None or not lease.worker or lease.node_id != first.node_id:
            return None
        return state.shapes[state.tasks[lease.task_id].shape_id].tenant_id

    tenant_id = await runtime.read(look)
    if tenant_id is None or store is None or not DIGEST.fullmatch(digest):
        raise NoContent("the node holds no lease of such a call, or the result has no valid name")
    if await asyncio.to_thread(store.find, tenant_id, digest) is not None:
        return size
    used = await runtime.read(used_content)
    try:
        arrival = await asyncio.to_thread(store.begin, tenant_id, digest, size, used)
        try:
            if first.data:
                await asyncio.to_thread(arrival.write, first.data)
            async for piece in rest:
                await asyncio.to_thread(arrival.write, piece.data)
            await asyncio.to_thread(arrival.finish)
        except BaseException:
            await asyncio.to_thread(arrival.give_up)
            raise
    except ContentTooLarge:
        raise NoContent(f"the result has more than {store.limits.max_bytes:,} bytes") from None
    except (ContentStoreFull, ContentMismatch, OSError) as error:
        raise NoContent(f"the result cannot be stored: {error or 'damaged on the way'}") from None
    return size


def transfer_methods(send: Any, take: Any) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The methods that nodes call: `send` streams content to a node, `take` stores content of a node."""
    return {
        "Content": grpc.unary_stream_rpc_method_handler(
            send,
            request_deserializer=pb.ContentRequest.FromString,
            response_serializer=pb.ContentPiece.SerializeToString,
        ),
        "PutContent": grpc.stream_unary_rpc_method_handler(
            take,
            request_deserializer=pb.ContentPut.FromString,
            response_serializer=pb.ContentPutDone.SerializeToString,
        ),
    }
