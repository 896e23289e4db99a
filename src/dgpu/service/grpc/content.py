"""Sends stored content to nodes. A node gets only the upload of a task whose lease it holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from dgpu.core.model.ids import LeaseId, TenantId
from dgpu.core.state import ClusterState
from dgpu.service.content.store import ContentStore
from dgpu.service.loop.runtime import Runtime
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.uploads import PIECE_BYTES, args_ref_of, upload_of


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
