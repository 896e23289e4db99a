"""Strict decoding of JSON bodies, and the exception for bad requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dgpu.wire.answers import FieldError

_SHORT = 60  # characters of a value in an error message


class BadRequest(Exception):  # noqa: N818 - named for what it is on the wire
    """Raised before any decision or change. `wire.problem` turns it into a response."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int = 400,
        errors: Iterable[FieldError] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.errors = tuple(errors)
        self.facts = facts or {}


def parse_json(body: bytes) -> Any:
    """Strict: no NaN, no duplicate keys, no half surrogate pairs, limited nesting."""
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest("malformed_json", "The body is nested too deeply.") from None
    except UnicodeDecodeError:
        raise BadRequest("malformed_json", "The body is not valid UTF-8.") from None
    except msgspec.DecodeError as error:
        raise BadRequest("malformed_json", _why_malformed(body, str(error))) from None
    # Each key ends with a quote and a colon; quotes inside texts only add to the number. Equal numbers
    # therefore prove that no key is duplicate, and only the rare rest is parsed again, slowly.
    if body.translate(None, b" \t\r\n").count(b'":') != _count_keys(raw):
        _refuse_duplicates(body)
    return raw


def _count_keys(raw: object) -> int:
    if type(raw) is not dict:
        return 0
    number = len(raw)
    tasks = raw.get("tasks")
    for task in [raw, raw.get("task")] if type(tasks) is not list else tasks:
        if type(task) is not dict:
            continue
        if task is not raw:
            number += len(task)
        for key in ("env", "labels"):
            inner = task.get(key)
            if type(inner) is dict:
                number += len(inner)
        if type(uses := task.get("secrets")) is dict:
            number += len(uses) + sum(len(use) for use in uses.values() if type(use) is dict)
    return number


def _refuse_duplicates(body: bytes) -> None:
    def once(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise BadRequest(
                    "malformed_json",
                    f"The key {shorten(key)} is given twice in one object.",
                    errors=[FieldError(path=key[:64], detail="Given twice.")],
                )
            seen.add(key)

    try:
        json.loads(body, object_pairs_hook=once)
    except RecursionError:
        raise BadRequest("malformed_json", "The body is nested too deeply.") from None


def _why_malformed(body: bytes, error: str) -> str:
    if not body.strip():
        return "The body is empty; a JSON object was expected."
    if "out of range" in error:
        return "The body has a number that is too large for any field."
    if b"\\ud" in body.lower() and "truncated" in error:
        return "The body has half of a surrogate pair (\\ud800 to \\udfff), which is not a character."
    if any(word in body for word in (b"NaN", b"Infinity")):
        return f"The body is not JSON: {error}. NaN and Infinity are not numbers in JSON."
    return f"The body is not JSON: {error}."


def expected_error(path: str, expected: str, value: object) -> FieldError:
    got = shorten(value)
    detail = f"Expected {expected}, got {got}."
    return FieldError(path=path, detail=detail, facts={"expected": expected, "got": got})


def shorten(value: object) -> str:
    """A value as JSON, for an error message."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = json.dumps(value[:_SHORT] if isinstance(value, str) else value)
    return text[: _SHORT - 1] + "…" if len(text) > _SHORT else text
