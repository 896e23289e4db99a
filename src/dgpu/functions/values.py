"""Arguments on their way to a function, and results on their way back."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dgpu.wire.call_answers import CallResult
from dgpu.worker.results import CannotEncodeError, encode_value

MAX_INLINE_BYTES: Final = 256 << 10


class CannotSendError(TypeError):
    """An argument is neither msgpack nor JSON, or too large."""


def packed_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return encode_value([list(args), dict(kwargs)])
    except CannotEncodeError as error:
        cause = str(error.__cause__ or error)
        raise CannotSendError(f"the arguments cannot be sent: {cause}") from None


def inline(body: bytes) -> str:
    return base64.b64encode(body).decode("ascii")


def is_large(body: bytes) -> bool:
    return len(body) > MAX_INLINE_BYTES


def value_of(ended: CallResult) -> Any:
    """Of a result that came with the answer."""
    if ended.encoding == "msgpack":
        return unpacked(base64.b64decode(ended.result or ""))
    return ended.result


def unpacked(body: bytes) -> Any:
    return msgspec.msgpack.decode(body) if body else None
