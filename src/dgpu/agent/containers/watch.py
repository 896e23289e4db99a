"""Whether the node's container engine answers. While it does, the node has the label that images require. asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from dgpu.agent.containers.engine import Engine, EngineError
from dgpu.agent.options import ContainerOptions
from dgpu.core.model.task import CONTAINERS, CONTAINERS_LABEL

_LOOK_SECONDS = 5.0
_ANSWER_SECONDS = 10.0

_log = structlog.get_logger("dgpu.agent")


class EngineWatch:
    def __init__(self, options: ContainerOptions | None) -> None:
        self._options = options
        self._why_down = "" if options is None else "the container engine was not asked yet"

    def labels(self) -> dict[str, str]:
        return {CONTAINERS_LABEL: CONTAINERS} if self._options is not None and not self._why_down else {}

    def unfit(self) -> str:
        """If every task needs the engine, the node is of no use without it."""
        return self._why_down if self._options is not None and self._options.default_image else ""

    async def look(self) -> bool:
        """Whether the answer changed."""
        if self._options is None:
            return False
        before, self._why_down = self._why_down, await asyncio.to_thread(_why_down, self._options.socket)
        if self._why_down and self._why_down != before:
            _log.warning("container_engine_down", reason=self._why_down)
        return bool(before) != bool(self._why_down)

    async def run(self, on_change: Callable[[Mapping[str, str]], None]) -> None:
        while self._options is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self.look():
                on_change(self.labels())


def _why_down(socket: str) -> str:
    try:
        Engine(socket).ping(seconds=_ANSWER_SECONDS)
    except EngineError as error:
        return str(error)
    return ""
