"""Requests about alerts: accepted values, and descriptions of expected ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, NamedTuple

from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.object_fields import checked
from dgpu.wire.requests import invalid
from dgpu.wire.wall_time import SHOWN

MAX_SILENCE_SECONDS = 366 * 86_400
ANY_RULE = "*"

SILENCE_FIELDS: dict[str, dict[str, Any]] = {
    "rule": {"type": "string", "description": "A rule's name, or * for every rule."},
    "subject": {"type": "string", "description": "As in the alert. Absent: every subject of the rule."},
    "seconds": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": MAX_SILENCE_SECONDS,
        "description": "How long. Give this or until.",
    },
    "until": {"type": "string", "format": "date-time", "description": "RFC 3339, with a time zone."},
    "comment": {"type": "string", "maxLength": fields.MAX_NAME_CHARS},
}


class SilenceRequest(NamedTuple):
    rule: str
    subject: str | None
    until: int
    comment: str


def decode_silence(body: bytes, rules: Collection[str], now: int) -> SilenceRequest:
    checks: dict[str, Check] = {
        "rule": _one_of((*rules, ANY_RULE)),
        "subject": _subject,
        "seconds": _seconds,
        "until": lambda value: _until(value, now),
        "comment": fields.name,
    }
    values = checked(_object(body), checks)
    errors = []
    if "rule" not in values:
        errors.append(FieldError(path="rule", detail="Required: the name of a rule, or * for every rule."))
    if ("seconds" in values) is ("until" in values):
        errors.append(FieldError(path="seconds", detail="Give either seconds or until."))
    if errors:
        raise invalid(errors)
    until = values["until"] if "until" in values else now + values["seconds"]
    return SilenceRequest(values["rule"], values.get("subject"), until, values.get("comment", ""))


def decode_comment(body: bytes) -> str:
    """The comment of an acknowledgement. The body may be empty."""
    raw = _object(body) if body else {}
    return str(checked(raw, {"comment": fields.name}).get("comment", ""))


def decode_nothing(body: bytes) -> None:
    """Refuses fields in a call that takes none, instead of ignoring them."""
    if body:
        checked(_object(body), {})


def _object(body: bytes) -> dict[str, Any]:
    raw = parse_json(body)
    if type(raw) is not dict:
        raise BadRequest("malformed_request", "The body must be an object.")
    return raw


def _one_of(words: Collection[str]) -> Check:
    def check(value: Any) -> str:
        if type(value) is str and value in words:
            return value
        raise Unacceptable(f"one of {', '.join(words)}")

    return check


def _subject(value: Any) -> str:
    if type(value) is str and value and len(value) <= fields.MAX_NAME_CHARS and value.isprintable():
        return value
    raise Unacceptable(f"the subject of an alert, at most {fields.MAX_NAME_CHARS} characters")


def _seconds(value: Any) -> int:
    """In milliseconds."""
    if type(value) in {int, float} and 0 < value <= MAX_SILENCE_SECONDS:
        milli: int = round(value * 1_000)
        return max(1, milli)
    raise Unacceptable(f"a number of seconds above 0, at most {MAX_SILENCE_SECONDS}")


def _until(value: Any, now: int) -> int:
    expected = "a future time within a year, like 2030-01-31T12:00:00Z"
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Unacceptable(expected) from None
    if moment.tzinfo is None:
        raise Unacceptable(f"{expected}, with a time zone")
    try:
        at = SHOWN.at_ms(round(moment.timestamp() * 1_000))
    except (OverflowError, OSError, ValueError):
        raise Unacceptable(expected) from None
    if not now < at <= now + MAX_SILENCE_SECONDS * 1_000:
        raise Unacceptable(expected)
    return at
