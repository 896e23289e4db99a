"""Frames between an agent and a worker process.

A frame is four bytes of length, big-endian, and one msgpack map whose `t` names its type. The worker listens; the agent
connects, again after a restart of its own. The newest connection replaces the one before.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

PROTOCOL: Final = 1
MAX_FRAME_BYTES: Final = 64 << 20
# A larger result is left in a file beside the socket.
MAX_INLINE_BYTES: Final = 256 << 10

# The agent passes these values on in messages with fields of 64 bits, or 32 for an attempt.
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Attempt = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Number = Annotated[int, msgspec.Meta(le=2**63 - 1)]
_Word = Annotated[str, msgspec.Meta(max_length=200)]

Outcome = Literal["returned", "raised", "cancelled", "timeout", "out_of_memory", "cannot_encode"]


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    loading: bool = False
    memory_mb: _Number = 0
    load_ms: _Number = 0
    used_ago_ms: _Number = 0


class HeldCall(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats the identity that came with the call, so that a restarted agent can register it."""

    lease: _Id
    state: Literal["queued", "running", "done"]
    task_id: _Id = 0
    attempt: _Attempt = 1
    nonce: _Word = ""
    cluster: _Word = ""


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    """The map of a frame."""


# Worker to agent.


class Hello(_Frame, frozen=True, tag="hello"):
    protocol: int
    pid: int
    calls: tuple[HeldCall, ...] = ()
    models: tuple[ModelState, ...] = ()


class Ready(_Frame, frozen=True, tag="ready"):
    """The preloaded models are in place."""


class Beat(_Frame, frozen=True, tag="beat"):
    at: float


class Started(_Frame, frozen=True, tag="started"):
    """Sent for calls that run for longer than a moment: a `done` without it counts as started, too."""

    lease: _Id


class Done(_Frame, frozen=True, tag="done", omit_defaults=True):
    """Kept by the worker until the agent has taken it."""

    lease: _Id
    outcome: Outcome
    result: bytes = b""
    result_file: str = ""
    sha256: str = ""
    size: _Number = 0
    encoding: str = "msgpack"
    error: str = ""
    traceback: str = ""
    ran_ms: _Number = 0
    output_bytes: _Number = 0


class Progress(_Frame, frozen=True, tag="progress"):
    lease: _Id
    permille: _Number
    text: str = ""


class Models(_Frame, frozen=True, tag="models"):
    models: tuple[ModelState, ...]


class Output(_Frame, frozen=True, tag="output"):
    """Bytes that a function, its C code or its child processes wrote to descriptor 1 or 2."""

    lease: _Id
    stream: int
    data: bytes


# Agent to worker.


class Call(_Frame, frozen=True, tag="call"):
    lease: int
    entrypoint: str
    task_id: int = 0
    attempt: int = 1
    nonce: str = ""
    cluster: str = ""
    args: bytes = b""  # msgpack of [args, kwargs]; empty: none
    args_file: str = ""
    model: str = ""
    timeout_ms: int = 0


class Cancel(_Frame, frozen=True, tag="cancel"):
    lease: int
    queued: bool = False  # only if the call has not begun


class Taken(_Frame, frozen=True, tag="taken"):
    leases: tuple[int, ...]


class Leave(_Frame, frozen=True, tag="leave"):
    """Begin nothing more, unload the models and exit."""


ToAgent = Hello | Ready | Beat | Started | Done | Progress | Models | Output
ToWorker = Call | Cancel | Taken | Leave

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class FrameError(ValueError):
    """The other side does not keep to the protocol."""


def encode(frame: ToAgent | ToWorker) -> bytes:
    body = _encoder.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is longer than {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


class _Reader:
    """Cuts a stream of bytes into bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def bodies(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        found: list[bytes] = []
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes is longer than {MAX_FRAME_BYTES}")
            if len(buffer) - start - 4 < size:
                break
            found.append(bytes(buffer[start + 4 : start + 4 + size]))
            start += 4 + size
        if start:
            del buffer[:start]
        return found


class WorkerDecoder(_Reader):
    """Frames that a worker receives."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = msgspec.msgpack.Decoder(ToWorker)

    def feed(self, data: bytes) -> list[ToWorker]:
        return [_checked(self._decoder, body) for body in self.bodies(data)]


class AgentDecoder(_Reader):
    """Frames that an agent receives."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = msgspec.msgpack.Decoder(ToAgent)

    def feed(self, data: bytes) -> list[ToAgent]:
        return [_checked(self._decoder, body) for body in self.bodies(data)]


def _checked(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(f"not a frame: {error}") from error
