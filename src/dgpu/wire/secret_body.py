"""The body that sets a secret. No error message shows a value."""

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple

from dgpu.core.model.secrets import MAX_VALUE_BYTES
from dgpu.wire.answers import FieldError
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.requests import invalid


class SecretField(NamedTuple):
    about: str
    schema: dict[str, Any]


SECRET_BODY_FIELDS: Final = {
    "value": SecretField(
        f"The value as text, at most {MAX_VALUE_BYTES:,} bytes.",
        {"type": "string", "maxLength": MAX_VALUE_BYTES},
    ),
    "value_base64": SecretField("Instead of value: any bytes, as base64.", {"type": "string"}),
}


def decode_secret(body: bytes) -> bytes:
    """The value."""
    raw = parse_json(body)
    if type(raw) is not dict or len(raw) != 1 or next(iter(raw)) not in SECRET_BODY_FIELDS:
        detail = 'The body must be {"value": "..."} or {"value_base64": "..."}.'
        raise BadRequest("malformed_request", detail)
    ((field, text),) = raw.items()
    if type(text) is not str:
        raise invalid([FieldError(path=field, detail="Expected text.")])
    try:
        value = text.encode() if field == "value" else base64.b64decode(text, validate=True)
    except ValueError:  # no base64, or not even ASCII
        raise invalid([FieldError(path=field, detail="Expected base64.")]) from None
    if not 0 < len(value) <= MAX_VALUE_BYTES:
        detail = f"Expected 1 to {MAX_VALUE_BYTES:,} bytes, got {len(value):,}."
        raise invalid([FieldError(path=field, detail=detail)])
    return value
