"""Server-sent events: lines in, events out. No I/O, so both clients share it."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_LINE_BYTES = 16 << 20


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # the journal index; pass it as `after` to continue after it
    type: str
    facts: dict[str, Any]


class EventParser:
    def __init__(self) -> None:
        self.last_id = ""
        self._type = ""
        self._lines: list[str] = []

    def on_line(self, line: str) -> ServerEvent | None:
        """Takes one line without its end. An event is complete at the empty line after it."""
        if not line:
            return self._complete()
        if line.startswith(":"):
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self.last_id = value
        elif name == "event":
            self._type = value
        elif name == "data":
            self._lines.append(value)
        return None

    def _complete(self) -> ServerEvent | None:
        kind, text = self._type, "\n".join(self._lines)
        self._type, self._lines = "", []
        if not text:
            return None
        try:
            facts = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            return None
        if not isinstance(facts, dict):
            return None
        return ServerEvent(id=self.last_id, type=kind or "message", facts=facts)
