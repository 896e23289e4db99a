"""Copies of output, content and history over gRPC: methods on the agents' port of the master, and a standby's
connection to it.

With TLS, a scheduler shows a certificate that it gave itself: every scheduler has the key of the cluster's authority.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
import msgspec

from dgpu.service.content import copy_words
from dgpu.service.content.copies import ContentCopies
from dgpu.service.copies import words
from dgpu.service.copies.copies import Copies
from dgpu.service.copies.stock import DamagedEntry
from dgpu.service.copies.taking import MasterGone
from dgpu.service.follower.link import AnswerFailed, FollowerAway
from dgpu.service.history import past_words
from dgpu.service.history.copying import OtherCluster, OwnHistory
from dgpu.service.history.reader import HistoryDamaged
from dgpu.wire.machines import SCHEDULER_NAME

if TYPE_CHECKING:
    from dgpu.service.machines.authority import Authority

_CALL_S = 30.0
_CERTIFICATE_S = 86_400
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", words.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", words.MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]

_Context = grpc.aio.ServicerContext[Any, Any]
Admit = Callable[[_Context], Awaitable[None]]  # aborts the call of a stranger
T = TypeVar("T", bound=msgspec.Struct)


_Asks = dict[str, tuple[type[Any], Callable[[Any], Awaitable[msgspec.Struct]]]]


def copy_methods(copies: Copies, admit: Admit) -> grpc.GenericRpcHandler:
    asks: _Asks = {
        "Fresh": (words.FreshAsk, copies.fresh),
        "Page": (words.PageAsk, copies.page),
        "Entries": (words.Wanted, copies.entries),
        "Offered": (words.OwnPage, copies.offered),
        "Put": (words.Entries, copies.put),
    }
    return _handler(words.SERVICE, asks, admit)


def content_methods(copies: ContentCopies, admit: Admit) -> grpc.GenericRpcHandler:
    asks: _Asks = {
        "Fresh": (copy_words.FreshAsk, copies.fresh),
        "Page": (copy_words.PageAsk, copies.page),
        "Piece": (copy_words.PieceAsk, copies.piece),
        "Offered": (copy_words.OwnPage, copies.offered),
        "Put": (copy_words.GivenPiece, copies.put),
    }
    return _handler(copy_words.SERVICE, asks, admit)


def history_methods(own: OwnHistory, admit: Admit) -> grpc.GenericRpcHandler:
    asks: _Asks = {
        "Reach": (past_words.ReachAsk, own.reach),
        "Page": (past_words.PageAsk, own.page),
        "Fill": (past_words.Fill, own.fill),
    }
    return _handler(past_words.SERVICE, asks, admit)


def _handler(service: str, asks: _Asks, admit: Admit) -> grpc.GenericRpcHandler:
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            _answering(ask, answer, admit),
            request_deserializer=None,
            response_serializer=msgspec.msgpack.encode,
        )
        for name, (ask, answer) in asks.items()
    }
    handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(service, methods)
    return handler


def _answering(
    ask: type[Any], answer: Callable[[Any], Awaitable[msgspec.Struct]], admit: Admit
) -> Callable[[bytes, _Context], Awaitable[msgspec.Struct]]:
    async def answered(content: bytes, context: _Context) -> msgspec.Struct:
        await admit(context)
        try:
            return await answer(msgspec.msgpack.decode(content, type=ask))
        except msgspec.MsgspecError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the question cannot be read: {error}")
        except DamagedEntry as error:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"not stored: {error.strerror}")
        except (OtherCluster, HistoryDamaged, FollowerAway, AnswerFailed, sqlite3.Error) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"its history: {error or 'not ready'}")
        raise AssertionError("abort raises")

    return answered


class MasterLink:
    """A standby's connection to the master. `authority`: None for plain text."""

    def __init__(self, address: str, authority: Authority | None, service: str = words.SERVICE) -> None:
        self._address = address
        self._service = service
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            return
        pair = authority.issue_peer(now_s=int(time.time()), lifetime_s=_CERTIFICATE_S)
        credentials = grpc.ssl_channel_credentials(
            authority.certificate_pem, pair.key_pem, pair.certificate_pem
        )
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", SCHEDULER_NAME)]
        self._channel = grpc.aio.secure_channel(address, credentials, options=options)

    async def call(self, method: str, message: msgspec.Struct, answer: type[T]) -> T:
        """Raises MasterGone."""
        call: grpc.aio.UnaryUnaryMultiCallable[Any, bytes] = self._channel.unary_unary(
            f"/{self._service}/{method}",
            request_serializer=msgspec.msgpack.encode,
            response_deserializer=None,
        )
        try:
            content: bytes = await call(message, timeout=_CALL_S)
            return msgspec.msgpack.decode(content, type=answer)
        except grpc.aio.AioRpcError as error:
            raise MasterGone(f"the master at {self._address}: {error.details()}") from error
        except msgspec.MsgspecError as error:
            raise MasterGone(
                f"the answer of the master at {self._address} cannot be read: {error}"
            ) from error

    async def close(self) -> None:
        await self._channel.close()
