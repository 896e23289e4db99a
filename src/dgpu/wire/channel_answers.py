"""Channels to running tasks: the answer to opening one, and the messages on it.

A channel is a WebSocket. A binary message is a piece of input or output, after one byte: 0 for standard input and
output, 1 for standard error. A text message is a JSON object.
"""

from __future__ import annotations

import msgspec

SUBPROTOCOL = "dgpu.channel.v1"
STANDARD = b"\0"
ERRORS = b"\1"
MAX_MESSAGE_BYTES = 128 << 10
PING_SECONDS = 15.0  # of the scheduler
SILENT_SECONDS = 60.0  # then an end that sent nothing, not even an answer to a ping, counts as lost


class OpenedChannel(msgspec.Struct, frozen=True, kw_only=True):
    channel_id: (
        str  # by the same user, for one connection within 30 s; to a port: for any number of connections
    )
    path: str  # of the WebSocket
    task_id: str
    node: str
    attempt: int


class FromClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One of them in each message."""

    size: tuple[int, int] | None = None  # rows, columns
    end: bool = False  # no more input


class ToClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last message. `reason`: ended (see exit_code), replaced (another client attached), lost (try again)."""

    closed: str
    detail: str = ""
    exit_code: int = 0
