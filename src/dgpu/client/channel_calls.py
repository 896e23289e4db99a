"""Calls that open channels to running tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path, given
from dgpu.wire.channel_answers import OpenedChannel
from dgpu.wire.link_answers import PortLink


class ChannelCalls:
    @Call
    def open_channel(
        self,
        task_id: str | int,
        command: str | Sequence[str] | None = None,
        *,
        size: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        rank: int | None = None,
        port: int | None = None,
    ) -> Request[OpenedChannel]:
        """Attaches to the terminal of a running task; with a command, runs it in the task's environment; with a port,
        reaches a TCP port of the task.

        `size`: rows and columns of a terminal. Connect to the channel within 30 s; see `client.channel`. A channel to a
        port takes any number of connections; see `client.forwarding`.
        """
        argv = command if command is None or isinstance(command, str) else list(command)
        body = given(command=argv, size=size, env=env, rank=rank, port=port)
        path = api_path("tasks", task_id, "channels")
        return Request("POST", path, OpenedChannel, body, is_repeatable=False)

    @Call
    def link(
        self,
        task_id: str | int,
        port: int | None = None,
        *,
        path: str | None = None,
        rank: int | None = None,
    ) -> Request[PortLink]:
        """A link that opens a port of a running task in a browser, once. Without a port: the task's first one."""
        body = given(port=port, path=path, rank=rank)
        return Request("POST", api_path("tasks", task_id, "links"), PortLink, body, is_repeatable=False)
