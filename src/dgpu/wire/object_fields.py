"""Checks the fields of a flat object in a request. All wrong fields are reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.requests import field_error, invalid, unknown_field


def checked(raw: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Raises BadRequest."""
    values: dict[str, Any] = {}
    errors = []
    for name, value in raw.items():
        check = checks.get(name)
        if check is None:
            errors.append(unknown_field(name, "", checks))
            continue
        try:
            values[name] = check(value)
        except Unacceptable as bad:
            errors.append(field_error(name, value, bad))
    if errors:
        raise invalid(errors)
    return values
