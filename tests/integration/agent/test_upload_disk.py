"""Uploads on a node whose disk fills up: a real disk of a few megabytes, and a real stream."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
import pytest

from dgpu.agent import upload_cache
from dgpu.agent.unpack import CannotUnpack
from dgpu.agent.upload_cache import UploadCache
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.proto import agent_pb2 as pb

MB = 1 << 20
NODE = NodeId("n1")


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Iterator[Path]:
    monkeypatch.setattr(upload_cache, "MIN_FREE_BYTES", 0)
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of 8 MiB needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Sender:
    """A scheduler that has one upload for each lease. `between` is called after the first piece."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = contents
        self.between: Callable[[], None] = lambda: None
        self.offsets: list[int] = []

    def digest(self, number: int) -> str:
        return hashlib.sha256(self.contents[number]).hexdigest()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(
            self._send,
            request_deserializer=pb.ContentRequest.FromString,
            response_serializer=pb.ContentPiece.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("dgpu.agent.v1.Agents", {"Content": handler})
        self._server.add_generic_rpc_handlers((service,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self._server.stop(0)

    async def _send(self, request, _):
        content = self.contents[request.lease_id]
        self.offsets.append(request.offset)
        for start in range(request.offset, len(content), MB // 2):
            yield pb.ContentPiece(size=len(content), data=content[start : start + MB // 2])
            self.between()


async def fetch(cache: UploadCache, sender: Sender, number: int) -> bytes:
    cache.connected(NODE, sender.channel, "session")
    async with cache.archive(NODE, LeaseId(number), sender.digest(number)) as path:
        return path.read_bytes()


async def test_a_disk_that_fills_up_during_a_fetch_is_the_nodes_fault_and_gets_its_room_back(disk) -> None:
    """The task may run on another node, or here as soon as there is room."""
    async with Sender(os.urandom(3 * MB)) as sender:
        cache = UploadCache(disk / "uploads")
        filler = disk / "of another program"
        sender.between = lambda: filler.write_bytes(bytes(6 * MB))
        with pytest.raises(CannotUnpack, match="no room on the node for the upload") as refused:
            await fetch(cache, sender, 0)
        assert refused.value.is_of_node
        assert not list((disk / "uploads").iterdir()), "half an archive must not keep the disk full"
        sender.between = lambda: None
        filler.unlink()
        assert await fetch(cache, sender, 0) == sender.contents[0]


async def test_archives_that_no_task_uses_make_room_for_a_new_one(disk) -> None:
    async with Sender(os.urandom(3 * MB), os.urandom(3 * MB), os.urandom(4 * MB)) as sender:
        cache = UploadCache(disk / "uploads")
        for number in (0, 1, 2):
            assert await fetch(cache, sender, number) == sender.contents[number]
        names = {each.name for each in (disk / "uploads").iterdir()}
        assert names == {sender.digest(1), sender.digest(2)}, "the least recently used one is deleted"


async def test_an_upload_larger_than_the_disk_is_refused_before_it_is_sent(disk) -> None:
    async with Sender(bytes(9 * MB)) as sender:
        with pytest.raises(CannotUnpack, match="no room on the node for the upload"):
            await fetch(UploadCache(disk / "uploads"), sender, 0)
        assert sum(each.stat().st_size for each in (disk / "uploads").iterdir()) == 0
