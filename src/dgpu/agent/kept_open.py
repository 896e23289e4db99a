"""Streams of a node beside its session: files, channels. Each is opened again when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import grpc
import grpc.aio

_REOPEN_SECONDS = 2.0
_OLD_SCHEDULER_SECONDS = 60.0


async def kept_open(one_call: Callable[[], Awaitable[None]]) -> NoReturn:
    while True:
        pause = _REOPEN_SECONDS
        try:
            await one_call()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older scheduler
                pause = _OLD_SCHEDULER_SECONDS
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
        await asyncio.sleep(pause)
