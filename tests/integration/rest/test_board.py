"""The data of dashboards: one picture, then the changes, the same bytes for all clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import http.client
import json
import socket
import time
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dgpu.client.stream import EventParser, ServerEvent
from dgpu.core.commands import DrainNode
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.service.board.board import Board
from dgpu.service.board.columns import CHANGING, FIXED
from dgpu.service.board.pieces import Listener, Piece
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.rest.backend import RestOptions
from dgpu.wire.board_answers import BoardCounts, BoardDelta, BoardSnapshot, GpuColumns, NodeColumns
from rest_world import RestWorld

SECONDS = 20


class Browser:
    """A dashboard: applies the events to its picture."""

    def __init__(self, world: RestWorld, *, encoding: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=SECONDS)
        headers = {"Accept-Encoding": encoding} if encoding else {}
        self._connection.request("GET", "/api/v1/board/stream", headers=headers)
        self.response = self._connection.getresponse()
        assert self.response.status == 200
        self._unpack = zlib.decompressobj(31) if encoding else None
        self._events = self._parse()
        self.picture: dict[str, Any] = {}

    def _parse(self) -> Iterator[ServerEvent]:
        parser, rest = EventParser(), b""
        while piece := self.response.read1(1 << 16):
            rest += self._unpack.decompress(piece) if self._unpack else piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                event = parser.on_line(line.decode())
                if event is not None:
                    yield event

    def next(self) -> tuple[str, Any]:
        event = next(self._events)
        data = event.facts
        if event.type == "snapshot":
            check_snapshot(data)
            self.picture = data
        elif event.type == "delta":
            check_delta(data)
            self._apply(data)
        return event.type, data

    def until(self, wanted) -> None:
        deadline = time.monotonic() + SECONDS
        while not wanted(self.picture):
            assert time.monotonic() < deadline, self.picture
            self.next()

    def _apply(self, delta: dict[str, Any]) -> None:
        assert delta["seq"] == self.picture["seq"] + 1
        for part in ("gpus", "nodes"):
            for column, change in delta.pop(part, {}).items():
                for row, value in zip(change["i"], change["v"], strict=True):
                    self.picture[part][column][row] = value
        self.picture["counts"] |= delta.pop("counts", {})
        point = delta.pop("point", None)
        if point:
            for name, value in point.items():
                self.picture["history"][name].append(value)
        self.picture |= {name: value for name, value in delta.items() if not name.startswith("changed")}

    def close(self) -> None:
        self.response.close()
        self._connection.close()


def check_snapshot(told: dict[str, Any]) -> None:
    """The pages are checked against types generated from these structs, so the stream must match the structs."""
    msgspec.convert(told, BoardSnapshot)
    assert set(told) == set(BoardSnapshot.__struct_fields__)
    assert set(told["counts"]) == set(BoardCounts.__struct_fields__)


def check_delta(told: dict[str, Any]) -> None:
    msgspec.convert(told, BoardDelta)
    assert set(told) <= set(BoardDelta.__struct_fields__)
    assert set(told.get("counts", ())) <= set(BoardCounts.__struct_fields__)
    for part, columns in (("gpus", GpuColumns), ("nodes", NodeColumns)):
        values = {name: change["v"] for name, change in told.get(part, {}).items()}
        msgspec.convert(values, columns)
        assert set(values) <= set(columns.__struct_fields__)


@contextlib.contextmanager
def browser(world: RestWorld, **how: str) -> Iterator[Browser]:
    opened = Browser(world, **how)
    try:
        yield opened
    finally:
        opened.close()


def measure(world: RestWorld, gpu_id: str, **values: int | None) -> None:
    async def put() -> None:
        world.runtime.telemetry[GpuId(gpu_id)] = GpuSample(at=1, **values)

    world.run(put())


def test_a_card_without_sensors_has_no_readings_and_lowers_no_mean(world) -> None:
    """0 %, 0 °C and 0 W would be readings."""
    world.add_node("n1", 2)
    measure(world, "GPU-n1-0", utilization_percent=80, memory_used_mb=900, temperature_c=60, power_w=200)
    measure(world, "GPU-n1-1")
    board = world.ask("GET", "/api/v1/board").body
    for column, value in (("util", 80), ("mem_used", 900), ("temp", 60), ("power", 200)):
        assert board["gpus"][column] == [value, None], column
    assert board["counts"]["util"] == 80
    assert board["history"]["util"][-1] == 80
    answer = world.ask("GET", "/api/v1/gpus").body["gpus"][1]
    readings = ("utilization_percent", "memory_used_mb", "temperature_c", "power_w")
    assert [answer[name] for name in readings] == [None] * 4
    monitor = world.ask("GET", "/api/monitor/metrics").body["gpus"]
    assert (monitor["utilization_percent"], monitor["temperature_max_c"], monitor["power_w"]) == (80, 60, 200)


def test_the_snapshot_is_the_cluster_in_columns(world) -> None:
    world.add_node("n2", 2)
    world.add_node("n1", 2, model="A100")
    tasks = [world.submit(name=f"t{number}") for number in range(5)]
    measure(
        world,
        "GPU-n1-1",
        utilization_percent=70,
        memory_used_mb=9_000,
        memory_foreign_mb=512,
        temperature_c=61,
    )
    board = world.ask("GET", "/api/v1/board").body
    assert board["nodes"]["id"] == ["n1", "n2"]
    assert board["nodes"]["first"] == [0, 2]
    assert board["gpus"]["id"] == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]
    assert board["gpus"]["node"] == [0, 0, 1, 1]
    assert [board["models"][number] for number in board["gpus"]["model"]] == ["A100", "A100", "V100", "V100"]
    assert [board["statuses"][code] for code in board["gpus"]["status"]] == ["busy"] * 4
    assert board["gpus"]["util"] == [None, 70, None, None]
    assert board["gpus"]["mem_foreign"][1] == 512
    assert sorted(number for on_gpu in board["gpus"]["tasks"] for number in on_gpu) == [1, 2, 3, 4]
    assert {len(column) for column in board["gpus"].values()} == {4}
    assert set(board["gpus"]) == {*FIXED, *CHANGING}
    counts = board["counts"]
    assert (counts["waiting"], counts["running"], counts["busy"], counts["ended"]) == (1, 4, 4, 0)
    assert counts["pending"] == {"online": 0, "batch": 1}
    assert counts["util"] == 70
    assert counts["wait_p50_ms"] is not None
    assert board["tenants"][0]["id"] == "default"
    assert board["pools"]["batch"]["used"] == 4
    assert board["history"]["waiting"][-1] == 1
    assert board["index"] == world.views.last_index
    assert len(tasks) == 5


def test_a_dashboard_that_only_follows_deltas_sees_what_a_fresh_one_sees(world) -> None:
    world.add_node("n1", 4)
    with browser(world) as followed:
        assert followed.next()[0] == "snapshot"
        ids = [world.submit(name=f"t{number}") for number in range(6)]
        measure(world, "GPU-n1-2", utilization_percent=33, memory_used_mb=100, temperature_c=50)
        followed.until(lambda seen: seen["counts"]["running"] == 4)
        world.finish_running()
        world.execute(DrainNode(node_id=NodeId("n1"), reason="a new fan"))
        followed.until(lambda seen: seen["counts"]["ended"] == 4 and seen["nodes"]["reason"] == ["a new fan"])
        with browser(world) as fresh:
            fresh.next()
            while followed.picture["seq"] < fresh.picture["seq"]:
                followed.next()
            while fresh.picture["seq"] < followed.picture["seq"]:
                fresh.next()
            for part in ("gpus", "nodes", "counts", "pools", "tenants", "seq", "index"):
                assert followed.picture[part] == fresh.picture[part], part
    assert len(ids) == 6


def test_deltas_come_to_the_same_as_the_list_of_gpus(world) -> None:
    """Other code computes the list again each time."""
    world.add_node("n1", 3)
    with browser(world) as watching:
        watching.next()
        for change in (
            lambda: [world.submit(command="true") for _ in range(2)],
            lambda: world.ask("DELETE", "/api/v1/tasks/1"),
            lambda: measure(world, "GPU-n1-1", utilization_percent=5, memory_used_mb=77, temperature_c=41),
            world.finish_running,
            lambda: world.execute(DrainNode(node_id=NodeId("n1"), reason="")),
        ):
            change()
            listed = world.ask("GET", "/api/v1/gpus").body["gpus"]
            watching.until(
                lambda seen, listed=listed: as_listed(seen) == [_columns_of(gpu) for gpu in listed]
            )
        assert as_listed(watching.picture)[0][:2] == ("GPU-n1-0", "draining")


def as_listed(board: dict[str, Any]) -> list[tuple[Any, ...]]:
    gpus = board["gpus"]
    columns = (
        gpus["id"],
        gpus["status"],
        gpus["util"],
        gpus["mem_used"],
        gpus["mem_reserved"],
        gpus["tasks"],
    )
    return [
        (gpu, board["statuses"][status], util, used, reserved, [f"task-{number}" for number in tasks])
        for gpu, status, util, used, reserved, tasks in zip(*columns, strict=True)
    ]


def _columns_of(gpu: dict[str, Any]) -> tuple[Any, ...]:
    names = ("id", "status", "utilization_percent", "memory_used_mb", "memory_reserved_mb", "tasks")
    return tuple(gpu[name] for name in names)


def test_a_delta_names_the_tasks_that_changed_within_a_bound(world) -> None:
    with browser(world) as watching:
        watching.next()
        world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 2_000})
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            _, delta = watching.next()
            if delta.get("changed"):
                break
    assert delta["changed"] == list(range(1, 257))
    assert delta["changed_more"] is True
    assert watching.picture["counts"]["waiting"] == 2_000


def test_new_nodes_come_as_a_new_picture(world) -> None:
    with browser(world) as watching:
        assert watching.next()[1]["gpus"]["id"] == []
        world.add_node("n1", 2)
        watching.until(lambda seen: seen["nodes"]["id"] == ["n1"])
        assert watching.picture["gpus"]["index"] == [0, 1]
        world.add_node("n1", 2)  # the same agent once more: nothing is new
        seq = watching.picture["seq"]
        kind, _ = watching.next()
        assert (kind, watching.picture["seq"]) == ("delta", seq + 1)


def test_the_packed_stream_says_the_same(world) -> None:
    world.add_node("n1", 2)
    with browser(world, encoding="gzip") as packed, browser(world) as plain:
        assert packed.response.headers["content-encoding"] == "gzip"
        packed.next()
        plain.next()
        world.submit()
        for watching in (packed, plain):
            watching.until(lambda seen: seen["counts"]["running"] == 1)
        assert packed.picture["gpus"] == plain.picture["gpus"]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", world.port, timeout=SECONDS)) as asking:
        asking.request("GET", "/api/v1/board", headers={"Accept-Encoding": "gzip"})
        assert json.loads(gzip.decompress(asking.getresponse().read()))["gpus"]["task_count"] == [1, 0]


def test_nothing_is_worked_out_while_nobody_looks_but_one_point_now_and_then(world) -> None:
    board = board_of(world)
    with browser(world) as watching:
        watching.next()
        watching.next()
    wait_until(lambda: board.listeners == 0)
    beats = board.beats
    world.add_node("n1", 4)
    world.submit()
    time.sleep(2.5)  # two beats would have come
    assert board.beats <= beats + 1
    assert world.ask("GET", "/api/v1/board").body["counts"]["running"] == 1


def test_many_dashboards_share_one_encoding(world) -> None:
    world.add_node("n1", 8)
    board = board_of(world)
    with contextlib.ExitStack() as stack:
        watching = [stack.enter_context(browser(world)) for _ in range(20)]
        for one in watching:
            one.next()
        beats = board.beats
        world.submit()
        for one in watching:
            one.until(lambda seen: seen["counts"]["running"] == 1)
        assert board.beats - beats <= 4
        assert board.listeners == 20
        assert watching[0].picture["counts"]["browsers"] <= 20
    wait_until(lambda: board.listeners == 0)
    wait_until(lambda: world.ask("GET", "/api/v1/board").body["counts"]["browsers"] == 0)


def test_a_dashboard_that_does_not_read_costs_little_and_is_told_to_start_over(world) -> None:
    """Its socket is full, its queue is bounded; the others go on. Deltas are made large so that it does not
    take hours.
    """
    board = board_of(world)
    with socket.create_connection(("127.0.0.1", world.port)) as slow, browser(world) as quick:
        slow.sendall(b"GET /api/v1/board/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        quick.next()
        wait_until(lambda: board.listeners == 2)
        (audience,) = board._audiences.all()

        async def flood() -> None:
            for _ in range(200):
                if any(listener.lagged for listener in audience.listeners):
                    return
                audience.seq += 1
                audience.publish(Piece(audience.seq, b": " + b"x" * 300_000 + b"\n\n"))
                await asyncio.sleep(0.01)

        world.run(flood())
        unread = [len(listener.pieces) for listener in audience.listeners]
        assert max(unread) <= Listener.MAX_UNREAD
        assert any(listener.lagged for listener in audience.listeners)
        slow.settimeout(SECONDS)
        told = read_until(slow, b"event: resync", b"")
        read_until(slow, b"event: snapshot", told)
    assert board.lagged >= 1


def test_there_is_a_limit_to_open_streams(tmp_path) -> None:
    with RestWorld(tmp_path, options=RestOptions(version="test", max_streams=2)) as world, browser(world):
        reply = world.ask("GET", "/api/v1/board/stream")
        assert (reply.status, reply.body["code"]) == (503, "too_many_streams")


def test_wrong_methods(world) -> None:
    for path in ("/api/v1/board", "/api/v1/board/stream"):
        assert world.ask("POST", path, {}).status == 405


@pytest.mark.parametrize("path", ["/api/v1/board", "/api/v1/board/stream", "/api/v1/session"])
def test_a_query_that_is_not_known_is_refused_as_elsewhere(world, path) -> None:
    reply = world.ask("GET", f"{path}?node=n1")
    elsewhere = world.ask("GET", "/api/v1/nodes?node=n1")
    assert reply.status == 400
    assert {**reply.body, "request_id": ""} == {**elsewhere.body, "request_id": ""}
    assert reply.body["errors"][0]["path"] == "node"


def read_until(sock: socket.socket, words: bytes, told: bytes) -> bytes:
    """The stream from these words on."""
    deadline = time.monotonic() + SECONDS
    while words not in told:
        assert time.monotonic() < deadline
        told = told[-len(words) :] + sock.recv(1 << 16)
    return told[told.index(words) :]


def board_of(world: RestWorld) -> Any:
    return next(
        found for found in gc.get_objects() if isinstance(found, Board) and found._runtime is world.runtime
    )


def wait_until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_ends_the_streams_well(tmp_path, caplog) -> None:
    with RestWorld(tmp_path) as world:
        watching = Browser(world)
        watching.next()
    rest = list(watching._events)
    watching.close()
    assert all(event.type == "delta" for event in rest), "and then it ends, without an error"
    assert "Exception" not in caplog.text
    assert "without completing" not in caplog.text
