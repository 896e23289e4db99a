"""The board for readers of some tenants: shared by all of the same tenants, and without tasks of others."""

from __future__ import annotations

import contextlib
import gc
import http.client
import time
from collections.abc import Iterator
from typing import Any

from dgpu.client.stream import EventParser, ServerEvent
from dgpu.service.access import audiences
from dgpu.service.board.board import Board
from dgpu.service.board.pieces import Audience, Listener, Piece
from rest_world import RestWorld

SECONDS = 20


def new_token(world: RestWorld, *tenants: str) -> str:
    asked = {"name": "laptop", "user": "ann", "role": "viewer", "tenants": list(tenants)}
    return str(world.ask("POST", "/api/v1/tokens", asked).body["token"])


@contextlib.contextmanager
def watching(world: RestWorld, token: str) -> Iterator[Iterator[ServerEvent]]:
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/board/stream", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield events_of(response)
        response.close()


def events_of(response: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    parser, rest = EventParser(), b""
    while piece := response.read1(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if (event := parser.on_line(line.decode())) is not None:
                yield event


def board_of(world: RestWorld) -> Any:
    return next(
        found for found in gc.get_objects() if isinstance(found, Board) and found._runtime is world.runtime
    )


def tasks_in(delta: dict[str, Any]) -> list[int]:
    rows = delta.get("gpus", {}).get("tasks", {"v": []})["v"]
    return [number for row in rows for number in row]


def test_a_delta_tells_own_tasks_and_counts_the_others(world) -> None:
    world.add_node("n1", 2)
    with watching(world, new_token(world, "lab")) as lab, watching(world, new_token(world, "rival")) as rival:
        assert [next(stream).facts["gpus"]["tasks"] for stream in (lab, rival)] == [[[], []], [[], []]]
        foreign, own = world.submit(tenant_id="rival"), world.submit(tenant_id="lab")
        assert (foreign, own) == ("task-1", "task-2")
        for stream, number in ((lab, 2), (rival, 1)):
            seen: list[int] = []
            changed: list[int] = []
            count: dict[int, int] = {}
            while len(count) < 2 or not seen:
                delta = next(stream).facts
                seen += tasks_in(delta)
                changed += delta.get("changed", [])
                counted = delta.get("gpus", {}).get("task_count", {"i": [], "v": []})
                count |= dict(zip(counted["i"], counted["v"], strict=True))
            assert (seen, set(changed), count) == ([number], {number}, {0: 1, 1: 1})


def test_readers_of_the_same_tenants_share_an_audience_that_ends_with_them(world) -> None:
    board = board_of(world)
    first, second = new_token(world, "lab", "other"), new_token(world, "other", "lab")
    with watching(world, first) as one, watching(world, second) as two:
        next(one)
        next(two)
        assert [audience.tenants for audience in board._audiences.all()] == [("lab", "other")]
    wait_until(lambda: board.listeners == 0)
    assert world.ask("GET", "/api/v1/board").status == 200
    wait_until(lambda: [audience.tenants for audience in board._audiences.all()] in ([], [None]))


def test_beyond_the_limit_of_audiences_a_reader_is_told_to_come_back(world, monkeypatch) -> None:
    monkeypatch.setattr(audiences, "MAX_AUDIENCES", 1)
    with watching(world, new_token(world, "lab")) as stream:
        next(stream)
        bearer = {"Authorization": f"Bearer {new_token(world, 'rival')}"}
        for path in ("/api/v1/board", "/api/v1/board/stream"):
            refused = world.ask("GET", path, headers=bearer)
            assert (refused.status, refused.body["code"]) == (503, "too_many_audiences")
            assert refused.headers["retry-after"] == "5"
        assert world.ask("GET", "/api/v1/board").status == 200, "a reader of all tenants always finds a place"


async def test_an_event_that_is_in_the_snapshot_is_not_sent_again() -> None:
    """A dashboard may join between the check of the state and the encoding for its audience."""
    listener = Listener(Audience(None), Piece(7, b""))
    for seq in (6, 7, 8):
        listener.offer(Piece(seq, b""))
    assert [piece.seq for piece in listener.pieces] == [8]


def wait_until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
