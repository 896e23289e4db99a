"""Writes committed events to the log. Above a rate limit, one line summarises many events."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from dgpu.core.events import Event
from dgpu.service.event_texts import Heading, count_of, heading_of, is_never_a_warning, log_fields

_LINES_PER_SECOND = 50  # per event name


class Committed(Protocol):
    @property
    def events(self) -> Sequence[Event]: ...


class EventLog:
    """Subscribe `on_committed` to the runtime; call `flush` from time to time and at the end."""

    def __init__(
        self,
        *,
        logger: Any = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._std = logging.getLogger("dgpu.events")
        self._logger = logger if logger is not None else structlog.get_logger("dgpu.events")
        self._clock = clock
        self._call_later = call_later
        self._second = clock()
        self._lines: dict[str, int] = {}
        self._held: dict[
            str, tuple[int, int]
        ] = {}  # name → level and number of events without their own line

    def on_committed(self, group: Committed) -> None:
        if not self._std.isEnabledFor(logging.WARNING):
            return
        told_all = self._std.isEnabledFor(logging.INFO)
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self.flush()
        for event in group.events:
            if not told_all and is_never_a_warning(type(event)):
                continue
            heading = heading_of(event)
            if heading is not None and (told_all or heading.level >= logging.WARNING):
                self._tell(heading, event)

    def flush(self) -> None:
        self._lines.clear()
        held, self._held = self._held, {}
        for name, (level, count) in held.items():
            self._logger.log(level, name, count=count, summary="more in the same second")

    def _tell(self, heading: Heading, event: Event) -> None:
        name = heading.name
        told = self._lines.get(name, 0)
        if told < _LINES_PER_SECOND:
            self._lines[name] = told + 1
            self._logger.log(heading.level, name, **log_fields(event))
            return
        if not self._held and self._call_later is not None:
            self._call_later(1.0, self.flush)
        self._held[name] = (heading.level, self._held.get(name, (0, 0))[1] + count_of(event))
