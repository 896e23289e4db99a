"""Files of nodes: each request has one answer, and whatever a node does not answer costs a bounded time and memory."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service import task_files
from dgpu.service.task_files import FileLink, FileStreams, FilesUnavailable, Place
from dgpu.wire.proto import agent_pb2 as pb

PLACE = Place(node_id=NodeId("n1"), task_id=TaskId(7), run=1, workdir="", path="model.pt")


class Node:
    """An agent that answers what a test tells it to."""

    def __init__(self, streams: FileStreams, content: bytes = b"") -> None:
        self.streams = streams
        self.content = content
        self.asked: list[pb.FileRequest] = []
        self.closed: list[int] = []
        self.silent = False
        self.link: FileLink = streams.attach(NodeId("n1"), self.hear)

    def hear(self, message: pb.FromSchedulerFiles) -> None:
        request = message.request
        if request.WhichOneof("what") == "close":
            self.closed.append(request.close.handle)
            return
        self.asked.append(request)
        if not self.silent:
            self.streams.on_answer(self.link, self.answer(request))

    def answer(self, request: pb.FileRequest) -> pb.FileAnswer:
        answer = pb.FileAnswer(request_id=request.request_id)
        match request.WhichOneof("what"):
            case "open":
                answer.entries.append(pb.FileEntry(name=b"model.pt", kind="file", size=len(self.content)))
            case "read":
                start = request.read.offset
                answer.data = self.content[start : start + request.read.size]
        return answer


async def refusal(streams: FileStreams) -> str:
    with pytest.raises(FilesUnavailable) as refused:
        await streams.open_file(PLACE)
    return refused.value.code


async def test_a_file_comes_in_pieces_and_is_closed() -> None:
    streams = FileStreams()
    node = Node(streams, bytes(1_300_000))
    reading = await streams.open_file(PLACE)
    pieces = [piece async for piece in reading.pieces()]
    assert b"".join(pieces) == node.content
    assert max(map(len, pieces)) == task_files.PIECE_BYTES
    assert node.closed == [node.asked[0].request_id]
    assert node.link.transfers == 0


async def test_a_download_continues_in_the_middle_of_the_same_file() -> None:
    streams = FileStreams()
    node = Node(streams, bytes(range(256)) * 5_000)
    first, later = await streams.open_file(PLACE), await streams.open_file(PLACE)
    assert first.version == later.version
    assert b"".join([piece async for piece in later.pieces(700_001)]) == node.content[700_001:]
    node.content += b"more"
    assert (await streams.open_file(PLACE)).version != first.version
    first.close()


async def test_a_reader_that_does_not_read_is_one_piece_ahead_at_most() -> None:
    streams = FileStreams()
    node = Node(streams, bytes(10 * task_files.PIECE_BYTES))
    pieces = (await streams.open_file(PLACE)).pieces()
    await anext(pieces)
    for _ in range(10):
        await asyncio.sleep(0)
    assert sum(request.WhichOneof("what") == "read" for request in node.asked) == 2
    await pieces.aclose()
    assert len(node.closed) == 1


async def test_a_file_that_was_cut_is_not_taken_for_a_whole_one() -> None:
    streams = FileStreams()
    node = Node(streams, bytes(2 * task_files.PIECE_BYTES))
    pieces = (await streams.open_file(PLACE)).pieces()
    await anext(pieces)
    node.content = b""
    with pytest.raises(FilesUnavailable, match="truncated to"):
        [piece async for piece in pieces]
    assert len(node.closed) == 1


async def test_a_node_that_leaves_ends_what_waits_for_it() -> None:
    streams = FileStreams()
    assert await refusal(streams) == "node_unreachable"
    node = Node(streams)
    node.silent = True
    asking = asyncio.ensure_future(refusal(streams))
    await asyncio.sleep(0)
    streams.detach(node.link)
    assert await asking == "node_unreachable"
    assert await refusal(streams) == "node_unreachable"


async def test_a_node_that_has_just_registered_is_waited_for(monkeypatch) -> None:
    streams = FileStreams()
    streams.is_connected = lambda _: True
    asking = asyncio.ensure_future(streams.open_file(PLACE))
    await asyncio.sleep(0)
    Node(streams, b"x")
    assert (await asking).entry.size == 1
    monkeypatch.setattr(task_files, "ATTACH_S", 0.01)
    older = FileStreams()
    older.is_connected = lambda _: True
    assert await refusal(older) == "node_unreachable"


async def test_a_node_that_does_not_answer_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(task_files, "ANSWER_S", 0.01)
    streams = FileStreams()
    node = Node(streams)
    node.silent = True
    assert await refusal(streams) == "node_silent"
    assert node.closed == [node.asked[0].request_id]  # it may have opened the file all the same
    streams.on_answer(node.link, node.answer(node.asked[0]))  # too late: no harm
    assert node.link.transfers == 0
    assert node.link.waiting == {}


async def test_transfers_of_a_node_are_bounded() -> None:
    streams = FileStreams()
    Node(streams, b"x")
    readings = [await streams.open_file(PLACE) for _ in range(task_files.MAX_TRANSFERS)]
    assert await refusal(streams) == "node_busy"
    readings[0].close()
    readings[0].close()  # twice: no harm
    await streams.open_file(PLACE)
    assert await refusal(streams) == "node_busy"


async def test_an_answer_without_an_entry_is_refused() -> None:
    streams = FileStreams()
    node = Node(streams)
    node.answer = lambda request: pb.FileAnswer(request_id=request.request_id)  # type: ignore[method-assign]
    assert await refusal(streams) == "malformed"


async def test_a_run_is_measured_on_its_node(monkeypatch) -> None:
    """Nothing is better than a wait: a page of a task must not depend on a slow or older node."""
    streams = FileStreams()
    assert await streams.measure(NodeId("n1"), LeaseId(3)) is None
    node = Node(streams)
    usage = pb.RunUsage(
        gpu_samples=2, gpu_percent=70, gpu_percent_p95=140, gpu_peak_mb=512, cpu_ms=9, rss_mb=4
    )
    monkeypatch.setattr(node, "answer", lambda asked: pb.FileAnswer(request_id=asked.request_id, usage=usage))
    expected = AttemptUsage(
        gpu_samples=2, gpu_percent=70, gpu_percent_p95=100, gpu_peak_mb=512, cpu_ms=9, rss_mb=4
    )
    assert await streams.measure(NodeId("n1"), LeaseId(3)) == expected
    assert node.asked[-1].measure.lease_id == 3
    monkeypatch.setattr(
        node, "answer", lambda asked: pb.FileAnswer(request_id=asked.request_id, error="unknown_request")
    )
    assert await streams.measure(NodeId("n1"), LeaseId(3)) is None
    monkeypatch.setattr(task_files, "MEASURE_S", 0.01)
    node.silent = True
    assert await streams.measure(NodeId("n1"), LeaseId(3)) is None
    assert not node.link.waiting
