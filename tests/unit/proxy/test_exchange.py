"""A request on its way through the proxy: what it does when its client leaves early."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.proxy.app import _Exchange
from dgpu.service.proxy.names import ServiceHost, Site, TaskPort
from dgpu.service.proxy.routes import Route
from dgpu.service.proxy.upstream import Upstream
from dgpu.service.rest.failures import Peer
from dgpu.service.task_channels import Channel
from dgpu.wire.proto import agent_pb2 as pb

UPGRADE = [(b"host", b"x"), (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]


class Line:
    """The proxy's part that an exchange uses, with a program that never answers."""

    def __init__(self) -> None:
        self.site = Site()
        self.entry = SimpleNamespace(is_secret=lambda _: False)
        self.channel = Channel(1, NodeId("n1"), lambda _: None)
        self.channel.on_message(pb.ChannelMessage(opened=pb.ChannelOpened(credit=1 << 20)))

    async def connect(self, route: Route) -> Upstream:
        return Upstream(self.channel)

    def give_back(self, route: Route, upstream: Upstream) -> None: ...


@pytest.mark.parametrize("headers", [UPGRADE, UPGRADE[:1]])
def test_a_client_that_leaves_before_the_answer_ends_the_connection_to_the_program(headers) -> None:
    async def run() -> Line:
        line, told = Line(), [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return told.pop(0)

        scope = {
            "method": "GET",
            "raw_path": b"/",
            "query_string": b"",
            "headers": headers,
            "state": {"switch": lambda *_: None},
        }
        exchange = _Exchange(line, scope, receive, None, Peer(uid=None))
        async with asyncio.timeout(30):
            await exchange.run(Route(LeaseId(1), NodeId("n1"), 80, TaskId(1)))
        return line

    assert asyncio.run(run()).channel.closed is not None


def test_a_part_of_a_host_has_at_most_63_characters() -> None:
    far = Site(domain="apps.example.org")
    assert far.long_label(ServiceHost("chat", "v" * 57)) == ""
    assert far.long_label(ServiceHost("chat", "v" * 58)) == "chat--" + "v" * 58
    assert Site().long_label(ServiceHost("chat", "v" * 58)) == "", (
        "names below localhost have parts of their own"
    )
    assert far.long_label(TaskPort(TaskId(1), 80)) == ""
