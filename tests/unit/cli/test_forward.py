"""`dgpu forward`: its arguments, and the local port that it takes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import typer

from dgpu.cli.failures import CliFailure
from dgpu.cli.forward import Forward, _listen, parse_forward
from dgpu.client.forwarding import Forwarder, local_url


@pytest.mark.parametrize(
    ("text", "expected"), [("8888", Forward(8888, None)), ("8888:9000", Forward(8888, 9000))]
)
def test_a_port_may_have_a_local_one(text: str, expected: Forward) -> None:
    assert parse_forward(text) == expected


@pytest.mark.parametrize("text", ["", "0", "65536", "8888:", ":8888", "8888:0", "1:2:3", "-1", "²", "http"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected PORT or PORT:LOCAL"):
        parse_forward(text)


def test_each_task_has_a_host_of_its_own() -> None:
    """A browser sends the cookies of localhost to every port of it, and those of another host to none."""
    assert local_url("task-7", 8888) == "http://task-7.localhost:8888/"
    assert local_url("task-7_3", 8888) == "http://task-7-3.localhost:8888/"


def test_a_taken_port_is_replaced_unless_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = None  # never asked: nothing connects

    async def listen(wanted: Forward) -> int:
        forwarder = Forwarder(client, "task-7")
        try:
            return await _listen(forwarder, wanted)
        finally:
            forwarder.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        chosen = asyncio.run(listen(Forward(taken, None)))
        assert chosen not in {0, taken}
        assert f"Port {taken} of this machine cannot be used" in capsys.readouterr().err
        with pytest.raises(CliFailure, match=f"Port {taken} of this machine cannot be used"):
            asyncio.run(listen(Forward(8888, taken)))
    assert asyncio.run(listen(Forward(taken, None))) == taken
