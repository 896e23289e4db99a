"""Handlers of gRPC methods, without generated stubs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

_M = TypeVar("_M", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]


def stream_method(
    behaviour: Callable[[Any, _Context], Awaitable[None]], request: type[_M]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A message that cannot be decoded arrives as None."""

    def decode(content: bytes) -> _M | None:
        try:
            return request.FromString(content)
        except DecodeError:
            return None

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=decode,
        response_serializer=lambda message: message.SerializeToString(),
    )
    return handler
