"""Parts of the service that get every committed group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog

from dgpu.service.machine.outputs import CommittedGroup, Publish

_log = structlog.get_logger("dgpu.scheduler")


class Subscribers:
    def __init__(self, *callbacks: Callable[[CommittedGroup], None]) -> None:
        self._callbacks = list(callbacks)

    def add(self, callback: Callable[[CommittedGroup], None]) -> Callable[[], None]:
        """The result removes it again."""
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    def publish(self, output: Publish) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(output.group)
            except Exception:  # noqa: BLE001 - a bug of one subscriber must not affect the others
                _log.exception("subscriber_failed", index=output.group.index)
