"""Channels to tasks over real HTTP and WebSocket: rights, refusals, bytes, ends. A node is played by the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dgpu.client.channel import Channel, Output
from dgpu.client.errors import NotFound, Unreachable
from dgpu.client.server import Server
from dgpu.core.commands import ReportStarted
from dgpu.core.model.ids import NodeId
from dgpu.wire.channel_answers import OpenedChannel, ToClient
from dgpu.wire.proto import agent_pb2 as pb
from rest_world import RestWorld


class EchoNode:
    """Sends input back, as far as it has credit, and ends a channel at the end of its input with code 5."""

    def __init__(self, world: RestWorld) -> None:
        self._world = world
        self.heard: list[pb.ChannelMessage] = []
        self._credit: Counter[int] = Counter()
        self._held: dict[int, list[pb.ChannelMessage]] = {}
        self._link = world.channels.attach(NodeId("n1"), self._hear)

    def _hear(self, sent: pb.FromSchedulerChannels) -> None:
        message = sent.message
        self.heard.append(message)
        match message.WhichOneof("what"):
            case "open" if message.open.command.argv[:1] == ["missing"]:
                self._say(
                    message, closed=pb.ChannelClosed(reason="cannot_start", detail="missing: not found")
                )
            case "open":
                self._credit[message.channel_id] = message.open.credit
                self._say(message, opened=pb.ChannelOpened(credit=1 << 20))
            case "data":
                self._held.setdefault(message.channel_id, []).append(message)
                self._echo(message.channel_id)
            case "credit":
                self._credit[message.channel_id] += message.credit.bytes
                self._echo(message.channel_id)
            case "end":
                self._say(message, data=pb.ChannelData(data=b"bye", is_error_output=True))
                self._say(message, closed=pb.ChannelClosed(reason="ended", exit_code=5))

    def _echo(self, channel_id: int) -> None:
        held = self._held.get(channel_id, [])
        while held and len(held[0].data.data) <= self._credit[channel_id]:
            message = held.pop(0)
            size = len(message.data.data)
            self._credit[channel_id] -= size
            self._say(message, data=message.data)
            self._say(message, credit=pb.ChannelCredit(bytes=size))

    def _say(self, about: pb.ChannelMessage, **what: Any) -> None:
        answer = pb.ChannelMessage(channel_id=about.channel_id, **what)
        self._world.loop.call_soon(self._world.channels.on_message, self._link, answer)

    def kinds(self) -> list[str]:
        return [str(message.WhichOneof("what")) for message in self.heard]


@pytest.fixture
def node(world: RestWorld) -> Iterator[EchoNode]:
    world.add_node("n1", gpus=3)
    world.channels.is_connected = lambda _: True
    for fields in ({}, {"terminal": True}):
        world.submit(tenant_id="lab", gpu_count=1, **fields)

    async def attach() -> EchoNode:
        return EchoNode(world)

    yield world.run(attach())


def start(world: RestWorld, number: int) -> None:
    lease = world.run(world.runtime.read(lambda state: state.tasks[number].lease_id))
    world.execute(ReportStarted(lease_id=lease))


def token(world: RestWorld, user: str, tenant: str = "lab") -> str:
    asked = {"name": user, "user": user, "role": "user", "tenants": [tenant]}
    return str(world.ask("POST", "/api/v1/tokens", asked).body["token"])


def opened(world: RestWorld, number: int = 1, **fields: Any) -> OpenedChannel:
    reply = world.ask("POST", f"/api/v1/tasks/{number}/channels", fields)
    assert reply.status == 201, reply
    return OpenedChannel(**reply.body)


def test_bytes_go_both_ways_and_the_exit_code_comes_last(world: RestWorld, node: EchoNode) -> None:
    start(world, 1)

    async def talk() -> tuple[bytes, bytes, ToClient]:
        channel = await Channel.connect(Server(world.url, ""), opened(world, command=["cat"], rank=0))
        out, err = b"", b""
        channel.resize(30, 90)
        sending = asyncio.ensure_future(channel.send(b"x" * 700_000))
        while len(out) < 700_000:
            told = await channel.receive()
            assert isinstance(told, Output)
            out += told.data
        await sending
        channel.end_input()
        while isinstance(told := await channel.receive(), Output):
            err += told.data if told.is_error_output else b"?"
        channel.close()
        return out, err, told

    out, err, told = asyncio.run(talk())
    assert out == b"x" * 700_000
    assert (err, told) == (b"bye", ToClient(closed="ended", exit_code=5))
    asked = node.heard[0].open
    assert list(asked.command.argv) == ["cat"]
    assert not asked.HasField("size")
    assert {"size", "end"} <= set(node.kinds())
    entry = world.ask("GET", "/api/v1/audit?action=task.enter").body["entries"][0]
    assert entry["subject"] == "task-1"


def test_a_channel_is_for_one_connection_of_the_user_that_opened_it(world: RestWorld, node: EchoNode) -> None:
    start(world, 1)
    server, other = Server(world.url, ""), Server(world.url, token(world, "bob"))
    channel = opened(world, command="true")

    async def twice() -> None:
        with pytest.raises(NotFound):
            await Channel.connect(other, channel)
        first = await Channel.connect(server, channel)
        with pytest.raises(NotFound):
            await Channel.connect(server, channel)
        first.close()

    asyncio.run(twice())


def test_a_client_that_leaves_closes_its_channel(world: RestWorld, node: EchoNode) -> None:
    start(world, 2)

    async def leave() -> None:
        channel = await Channel.connect(Server(world.url, ""), opened(world, 2, size=[24, 80]))
        channel.close()

    asyncio.run(leave())
    while node.kinds()[-1] != "closed":
        world.run(asyncio.sleep(0.01))
    assert node.heard[0].open.WhichOneof("to") == "terminal"


def test_a_revoked_token_ends_its_channels(world: RestWorld, node: EchoNode) -> None:
    start(world, 1)
    asked = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"]}
    given = world.ask("POST", "/api/v1/tokens", asked).body
    headers = {"Authorization": f"Bearer {given['token']}"}

    async def talk() -> None:
        reply = world.ask("POST", "/api/v1/tasks/1/channels", {"command": "cat"}, headers=headers)
        channel = await Channel.connect(Server(world.url, given["token"]), OpenedChannel(**reply.body))
        assert world.ask("DELETE", f"/api/v1/tokens/{given['id']}").status == 200
        with pytest.raises(Unreachable):
            while True:
                await channel.receive()

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 409, "no_terminal"),
        ({"command": ["missing"]}, 409, "cannot_start"),
        ({"command": []}, 400, "invalid_field"),
        ({"size": [0, 80]}, 400, "invalid_field"),
        ({"commands": ["ls"]}, 400, "invalid_field"),
        ({"command": "ls", "rank": 1}, 404, "unknown_rank"),
    ],
)
def test_bad_requests_are_refused_by_name(
    world: RestWorld, node: EchoNode, fields: dict[str, Any], status: int, code: str
) -> None:
    start(world, 1)
    reply = world.ask("POST", "/api/v1/tasks/1/channels", fields)
    assert reply.status == status, reply
    assert reply.body["code"] == code, reply


def test_tasks_that_do_not_run_are_named(world: RestWorld, node: EchoNode) -> None:
    assert world.ask("POST", "/api/v1/tasks/1/channels", {"command": "ls"}).body["code"] == "run_not_started"
    start(world, 1)
    waiting = world.submit(tenant_id="lab", gpu_count=3)
    told = world.ask("POST", f"/api/v1/tasks/{waiting}/channels", {"command": "ls"}).body
    assert (told["code"], "dgpu why" in told["detail"]) == ("run_not_started", True)
    world.ask("DELETE", f"/api/v1/tasks/{waiting}", None)
    told = world.ask("POST", f"/api/v1/tasks/{waiting}/channels", {"command": "ls"}).body
    assert (told["code"], "has ended (cancelled)" in told["detail"]) == ("not_running", True)
    world.channels.is_connected = lambda _: False
    world.run(detached(world, node))
    told = world.ask("POST", "/api/v1/tasks/1/channels", {"command": "ls"})
    assert (told.status, told.body["code"]) == (503, "node_unreachable")


async def detached(world: RestWorld, node: EchoNode) -> None:
    world.channels.detach(node._link)


def test_a_web_page_of_another_origin_opens_nothing(world: RestWorld, node: EchoNode) -> None:
    start(world, 1)
    foreign = {"Origin": "http://evil.example"}
    reply = world.ask("POST", "/api/v1/tasks/1/channels", {"command": "ls"}, headers=foreign)
    assert (reply.status, reply.body["code"]) == (403, "foreign_origin")
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x" * 24}
    path = opened(world, command="ls").path
    reply = world.ask("GET", path, headers={**foreign, **upgrade})
    assert (reply.status, reply.body["code"]) == (403, "foreign_origin")
    assert world.ask("GET", path).body["code"] == "websocket_needed"


def test_another_tenant_finds_no_task(world: RestWorld, node: EchoNode) -> None:
    start(world, 1)
    headers = {"Authorization": f"Bearer {token(world, 'eve', 'rival')}"}
    reply = world.ask("POST", "/api/v1/tasks/1/channels", {"command": "ls"}, headers=headers)
    assert (reply.status, reply.body["code"]) == (404, "unknown_task")
    assert not node.heard
