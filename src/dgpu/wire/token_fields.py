"""The body of a request for an API token."""

from __future__ import annotations

from typing import Any, NamedTuple

from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, expected_error, parse_json
from dgpu.wire.requests import invalid
from dgpu.wire.roles import MACHINE_ROLES, UNBOUND_ROLES, Role

ALL_TENANTS = "*"
MAX_TENANTS_OF_TOKEN = 100
MAX_SCOPES = 50
DEFAULT_EXPIRY_SECONDS = 90 * 86_400
MAX_EXPIRY_SECONDS = 10 * 366 * 86_400


class AskedToken(NamedTuple):
    name: str
    user: str  # "": not given
    role: Role
    tenants: tuple[str, ...]
    all_tenants: bool
    expires_in_seconds: int  # 0: never
    scopes: tuple[str, ...]  # (): all actions of the role


class TokenField(NamedTuple):
    check: Check
    about: str
    schema: dict[str, Any]


def _words(value: Any) -> str:
    text: str = fields.short_line(value)
    if not text.strip():
        raise Unacceptable("text that is not empty")
    return text.strip()


def _role(value: Any) -> Role:
    if type(value) is not str:
        raise Unacceptable(f"one of {', '.join(Role)}")
    if value in MACHINE_ROLES:
        raise Unacceptable(f"a role of people: {', '.join(Role)}; {value} is for certificates of machines")
    try:
        return Role(value)
    except ValueError:
        raise Unacceptable(f"one of {', '.join(Role)}") from None


def _tenants(value: Any) -> tuple[str, ...]:
    if value == [ALL_TENANTS]:
        return (ALL_TENANTS,)
    if type(value) is not list or not 0 < len(value) <= MAX_TENANTS_OF_TOKEN:
        raise Unacceptable(f'a list of 1 to {MAX_TENANTS_OF_TOKEN} tenants, or ["{ALL_TENANTS}"] for all')
    return tuple(dict.fromkeys(fields.tenant(each) for each in value))


def _scopes(value: Any) -> tuple[str, ...]:
    """The service knows which actions there are."""
    if (
        type(value) is not list
        or not 0 < len(value) <= MAX_SCOPES
        or not all(type(one) is str for one in value)
    ):
        raise Unacceptable(f"a list of 1 to {MAX_SCOPES} actions, such as task.submit")
    return tuple(dict.fromkeys(value))


_TEXT = {"type": "string", "maxLength": 128}
TOKEN_FIELDS: dict[str, TokenField] = {
    "name": TokenField(_words, "What it is for.", _TEXT),
    "user": TokenField(_words, "Who acts with it. Your own name if absent.", _TEXT),
    "role": TokenField(
        _role, "user if absent.", {"enum": [role.value for role in Role], "default": Role.USER.value}
    ),
    "tenants": TokenField(
        _tenants,
        'The tenants it acts for; tasks go to the first one if they name none. ["*"]: all, for a viewer. Required for '
        "tenant-admin, user and viewer; admin and operator are always of all tenants.",
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_TENANTS_OF_TOKEN},
    ),
    "scopes": TokenField(
        _scopes,
        "The only actions that it may do, such as task.submit and task.read. All actions of its role if absent.",
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_SCOPES},
    ),
    "expires_in_seconds": TokenField(
        fields.whole(0, MAX_EXPIRY_SECONDS),
        f"0: never. {DEFAULT_EXPIRY_SECONDS} (90 days) if absent.",
        {"type": "integer", "minimum": 0, "maximum": MAX_EXPIRY_SECONDS, "default": DEFAULT_EXPIRY_SECONDS},
    ),
}


def decode_token(body: bytes) -> AskedToken:
    raw = parse_json(body)
    if type(raw) is not dict:
        raise BadRequest(
            "malformed_request", 'The body must be an object: {"name": "...", "tenants": ["..."]}.'
        )
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for name, value in raw.items():
        field = TOKEN_FIELDS.get(name)
        if field is None:
            errors.append(FieldError(path=name[:64], detail=f"Expected one of {', '.join(TOKEN_FIELDS)}."))
        elif value is not None:
            try:
                values[name] = field.check(value)
            except Unacceptable as bad:
                errors.append(expected_error(name, bad.expected, value))
    if "name" not in values and not any(error.path == "name" for error in errors):
        errors.append(FieldError(path="name", detail="Required: what the token is for."))
    role, tenants = values.get("role", Role.USER), values.get("tenants", ())
    if not errors and (wrong := _wrong_tenants(role, tenants)):
        errors.append(FieldError(path="tenants", detail=wrong))
    if errors:
        raise invalid(errors)
    is_for_all = role in UNBOUND_ROLES or tenants == (ALL_TENANTS,)
    return AskedToken(
        name=values["name"],
        user=values.get("user", ""),
        role=role,
        tenants=() if is_for_all else tenants,
        all_tenants=is_for_all,
        expires_in_seconds=values.get("expires_in_seconds", DEFAULT_EXPIRY_SECONDS),
        scopes=values.get("scopes", ()),
    )


def _wrong_tenants(role: Role, tenants: tuple[str, ...]) -> str:
    if role in UNBOUND_ROLES:
        is_right = tenants in {(), (ALL_TENANTS,)}
        return "" if is_right else f"Leave it out: {role} is always of all tenants, got {', '.join(tenants)}."
    if not tenants:
        return f"Required for the role {role}: the tenants it acts for."
    if tenants == (ALL_TENANTS,) and role is not Role.VIEWER:
        return f"Expected names of tenants: only a viewer may be of all tenants, not {role}."
    return ""
