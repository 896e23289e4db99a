"""How a task asks for messages about it."""

from __future__ import annotations

import re
from typing import Any, Final

from dgpu.core.model.task import Wish
from dgpu.wire.fields import Unacceptable

EVENTS: Final = ("start", "end", "fail")
MAX_WISHES: Final = 8
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_EXPECTED = (
    "[EVENTS=]NAME, like slack or end,start=slack; events: start, end, fail; NAME: a target or a secret"
)

NOTIFY_SCHEMA: Final[dict[str, Any]] = {
    "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_WISHES}]
}


def notify(value: Any) -> tuple[Wish, ...]:
    """`end=NAME`, `start,fail=NAME`, `NAME` (at its end), or a list of them. Never a URL: it may contain a password."""
    items = value if type(value) is list else [value] if value else []
    if len(items) > MAX_WISHES:
        raise Unacceptable(f"at most {MAX_WISHES} entries", value=f"{len(items)} entries")
    return tuple(
        _wish(item, f"[{number}]" if type(value) is list else "") for number, item in enumerate(items)
    )


def notify_text(wish: Wish) -> str:
    return f"{','.join(wish[0])}={wish[1]}"


def _wish(item: Any, at: str) -> Wish:
    if type(item) is not str:
        raise Unacceptable(_EXPECTED, at=at, value=item)
    if "://" in item:  # its value must not appear in an answer
        expected = "the name of a target or of a secret that holds the URL (dgpu secret set NAME), not the URL itself"
        raise Unacceptable(expected, at=at, secret=True)
    said, equals, name = item.rpartition("=")
    events = tuple(dict.fromkeys(word.strip() for word in said.split(","))) if equals else ("end",)
    if not _NAME.fullmatch(name.strip()) or not set(events) <= set(EVENTS):
        raise Unacceptable(_EXPECTED, at=at, value=item)
    return events, name.strip()
