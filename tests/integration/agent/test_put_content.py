"""A large result on its way to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dgpu.agent.upload_cache import UploadCache
from dgpu.agent.workers.content import put_content
from dgpu.agent.workers.words import PutResult
from dgpu.core.model.ids import LeaseId, NodeId

NODE = NodeId("n1")
ASKED = PutResult(lease_id=LeaseId(2), worker_lease_id=LeaseId(1), name="r", sha256="a" * 64, size=3)


class SilentScheduler:
    """Takes the pieces of a result and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[grpc.aio.Channel]:
        server = grpc.aio.server()
        method = grpc.stream_unary_rpc_method_handler(self._put)
        service = grpc.method_handlers_generic_handler("dgpu.agent.v1.Agents", {"PutContent": method})
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            await server.stop(0)

    async def _put(self, _puts: Any, _context: Any) -> bytes:
        self.asked.set()
        await asyncio.Event().wait()
        return b""


@pytest.mark.parametrize("how", ["the session ends", "the agent ends"])
def test_a_put_is_tried_again_after_its_session_ended(tmp_path: Path, how: str) -> None:
    """A call whose channel is closed is cancelled. The agent took that for its own end, and the task ran on."""

    async def run() -> None:
        (tmp_path / "r").write_bytes(b"abc")
        descriptor = os.open(tmp_path / "r", os.O_RDONLY)
        uploads = UploadCache(tmp_path / "uploads")
        scheduler = SilentScheduler()
        async with scheduler.serving() as channel:
            uploads.connected(NODE, channel, "s1")
            putting = asyncio.ensure_future(put_content(uploads, NODE, ASKED, descriptor))
            await scheduler.asked.wait()
            if how == "the agent ends":
                putting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await putting
            else:
                await channel.close()
                assert await putting is False
                assert await put_content(uploads, NODE, ASKED, descriptor) is False  # on the closed channel
                uploads.lost(NODE)
                assert await put_content(uploads, NODE, ASKED, descriptor) is False
        os.close(descriptor)

    asyncio.run(run())
