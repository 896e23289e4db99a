"""A stream ends with the token or session that opened it, over real HTTP: events, board, followed output, downloads."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.service.access.token_book import TokenBook
from dgpu.service.rest.backend import RestOptions
from dgpu.service.rest.sessions import COOKIE_SECONDS
from dgpu.service.task_files import PIECE_BYTES, FileLink, FileStreams
from dgpu.wire.isolation import Isolation
from dgpu.wire.proto import agent_pb2 as pb
from rest_world import RestWorld

SECONDS = 15
STREAMS = (
    "/api/v1/events",
    "/api/v1/board/stream",
    "/api/v1/tasks/1/logs?follow=true",
    "/api/v1/tasks/2/files/big",
)


class HalfSilentNode:
    """An agent that sends the first piece of a file, and then nothing more."""

    def __init__(self, streams: FileStreams) -> None:
        self._streams = streams
        self._link: FileLink = streams.attach(NodeId("n1"), self._hear)

    def _hear(self, message: pb.FromSchedulerFiles) -> None:
        request = message.request
        answer = pb.FileAnswer(request_id=request.request_id)
        match request.WhichOneof("what"):
            case "open":
                answer.entries.append(pb.FileEntry(name=b"big", kind="file", size=100 * PIECE_BYTES))
            case "read" if request.read.offset == 0:
                answer.data = bytes(PIECE_BYTES)
            case _:
                return
        self._streams.on_answer(self._link, answer)


@pytest.fixture
def lab(world: RestWorld) -> RestWorld:
    world.add_node("n1", gpus=1)
    world.submit(tenant_id="lab", gpu_count=1)
    world.submit(tenant_id="lab", gpu_count=0, workdir="/somewhere")

    async def attach() -> None:
        HalfSilentNode(world.files)

    world.run(attach())
    return world


def new_token(world: RestWorld, **fields: Any) -> dict[str, Any]:
    asked = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"], **fields}
    return dict(world.ask("POST", "/api/v1/tokens", asked).body)


@contextlib.contextmanager
def opened(
    world: RestWorld, path: str, token: str = "", headers: dict[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response


def read_to_the_end(response: http.client.HTTPResponse) -> str:
    """`cut` if the answer is unfinished. A stream that goes on, also with keep-alives, runs into the time limit."""
    deadline = time.monotonic() + SECONDS
    try:
        while response.read1(1 << 16):
            assert time.monotonic() < deadline, "the stream goes on"
    except (http.client.IncompleteRead, ConnectionResetError):
        return "cut"
    return "ended"


def open_streams(world: RestWorld) -> int:
    text = world.ask("GET", "/metrics").body
    return int(next(line for line in text.splitlines() if line.startswith("http_streams ")).split()[1])


@pytest.mark.parametrize("path", STREAMS)
def test_a_revocation_ends_the_streams_of_the_token_and_no_others(lab, path: str) -> None:
    revoked, other = new_token(lab), new_token(lab)
    with (
        opened(lab, path, revoked["token"]) as response,
        opened(lab, "/api/v1/events", other["token"]) as going_on,
    ):
        assert lab.ask("DELETE", f"/api/v1/tokens/{revoked['id']}").status == 200
        if "/files/" in path:  # of a known length: the client sees that bytes are missing
            assert len(response.read1(1 << 20)) > 0
        assert read_to_the_end(response) in {"cut", "ended"}
        lab.submit(tenant_id="lab")
        told = going_on.read1()
        while b"task_submitted" not in told:
            told += going_on.read1()
    wait_until(lambda: open_streams(lab) == 0)


def test_followed_output_is_cut_and_not_ended(lab) -> None:
    """A clean end would tell the client that the task has ended."""
    made = new_token(lab)
    with opened(lab, STREAMS[2], made["token"]) as response:
        lab.ask("DELETE", f"/api/v1/tokens/{made['id']}")
        assert read_to_the_end(response) == "cut"


@pytest.mark.parametrize("path", STREAMS[:3])
def test_an_expired_token_ends_its_streams(lab, path: str) -> None:
    made = new_token(lab, expires_in_seconds=60)
    book: TokenBook = lab.access.tokens
    with opened(lab, path, made["token"]) as response:
        now = book.now_wall_ms()
        book._wall_ms = lambda: now + 61_000
        assert read_to_the_end(response) in {"cut", "ended"}


@pytest.mark.parametrize("how", ["signed out", "token revoked", "expired"])
def test_a_session_that_ends_ends_its_streams(lab, how: str) -> None:
    made = new_token(lab)
    signed_in = lab.ask("POST", "/api/v1/session", {"token": made["token"]}, {"Origin": lab.url})
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0], "Origin": lab.url}
    with opened(lab, "/api/v1/board/stream", headers=cookie) as response:
        if how == "signed out":
            assert lab.ask("DELETE", "/api/v1/session", headers=cookie).status == 204
        elif how == "token revoked":
            assert lab.ask("DELETE", f"/api/v1/tokens/{made['id']}").status == 200
        else:
            now = lab.access.sessions._wall_clock()
            lab.access.sessions._wall_clock = lambda: now + COOKIE_SECONDS
        assert read_to_the_end(response) in {"cut", "ended"}


def test_a_token_that_revokes_itself_gets_its_answer(lab) -> None:
    made = new_token(lab, role="tenant-admin")
    with opened(lab, "/api/v1/events", made["token"]) as response:
        reply = lab.ask(
            "DELETE", f"/api/v1/tokens/{made['id']}", headers={"Authorization": f"Bearer {made['token']}"}
        )
        assert reply.status == 200
        read_to_the_end(response)


def wait_until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_tenant_leaves_streams_for_others(tmp_path) -> None:
    """Without shares, one tenant could open all of them."""
    options = RestOptions(version="t", max_streams=4, isolation=Isolation(users="none"))
    with RestWorld(tmp_path, options=options) as world:
        lab = new_token(world)["token"]
        other = new_token(world, tenants=["other"])["token"]
        with opened(world, "/api/v1/events", lab), opened(world, "/api/v1/events", lab):
            refused = world.ask("GET", "/api/v1/events", headers={"Authorization": f"Bearer {lab}"})
            assert (refused.status, refused.body["code"]) == (503, "too_many_streams")
            with opened(world, "/api/v1/events", other) as response:
                assert response.status == 200
