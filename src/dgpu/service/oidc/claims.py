"""From the claims of a verified token to a principal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dgpu.service.access.principal import Principal
from dgpu.service.oidc.options import OidcOptions
from dgpu.wire import fields
from dgpu.wire.answers import Problem
from dgpu.wire.fields import Unacceptable
from dgpu.wire.roles import UNBOUND_ROLES, Role
from dgpu.wire.token_fields import MAX_TENANTS_OF_TOKEN

MAX_VALUES: Final = 1_000  # of one claim; further ones are not looked at
_MAX_SHOWN: Final = 3  # values of a claim in a message
_MAX_LINE: Final = 64
_STRONGEST: Final = {role: number for number, role in enumerate(Role)}


def wrong_claims(
    options: OidcOptions,
    claims: Mapping[str, Any],
    *,
    expected: Sequence[str],
    now_s: float,
    nonce: str | None = None,
) -> Problem | None:
    """`expected`: audiences. `nonce`: of the sign-in of a browser; None: a token on the API. The signature was right,
    so the text may name the token: its sender knows all claims.
    """
    token = _named(options, claims)
    if claims.get("iss") != options.issuer:
        return _wrong(f"{token} is of the issuer {_shown(claims.get('iss'))}, expected {options.issuer!r}.")
    audiences = claims.get("aud")
    named = audiences if isinstance(audiences, list) else [audiences]
    if not any(audience in named for audience in expected):
        return _wrong(
            f"{token} is for another audience: {_shown(*named)}, expected {expected[0]!r}. Request a token for this "
            "audience from the identity provider, or ask the administrator of dgpu to change auth.oidc.audience."
        )
    if nonce is not None:
        if claims.get("nonce") != nonce:
            return _wrong(f"{token} belongs to another sign-in.")
        if (len(named) > 1 or "azp" in claims) and claims.get("azp") != options.client_id:
            return _wrong(
                f"{token} was issued to the client {_shown(claims.get('azp'))}, expected {options.client_id!r}."
            )
    return _wrong_times(options, claims, token, now_s)


def _wrong_times(options: OidcOptions, claims: Mapping[str, Any], token: str, now_s: float) -> Problem | None:
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    is_number = all(type(each) in {int, float} and abs(each) < 1e12 for each in times.values())
    if "exp" not in times or not is_number:
        return _wrong(f"{token} has no expiry, or a time that is no number.")
    if now_s >= times["exp"] + options.clock_skew_s:
        detail = f"{token} is expired. Get another one from the identity provider."
        return Problem(status=401, code="token_expired", title="The token is expired", detail=detail)
    if max(times.get("nbf", 0), times.get("iat", 0)) > now_s + options.clock_skew_s:
        return _wrong(f"{token} is not valid yet: compare the clocks.")
    return None


def _named(options: OidcOptions, claims: Mapping[str, Any]) -> str:
    """The token in a sentence: its user, and its id if it has one."""
    user = claims.get(options.user_claim) or claims.get("sub")
    owner = f" of {_line(user)}" if isinstance(user, str) else ""
    token_id = claims.get("jti")
    return f"The token{owner}{f' (jti {_line(token_id)})' if isinstance(token_id, str) else ''}"


def _shown(*values: object) -> str:
    """Values of a claim, in a bounded form."""
    texts = [repr(_line(each)) for each in values[:_MAX_SHOWN] if isinstance(each, str)]
    return ", ".join(texts) or "(none)"


def _line(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text[:_MAX_LINE])


def principal_of(options: OidcOptions, claims: Mapping[str, Any]) -> Principal | Problem:
    try:
        user = fields.short_line(claims.get(options.user_claim)).strip()
    except Unacceptable:
        user = ""
    if not user:
        detail = f"The account has no text in the claim {options.user_claim} (auth.oidc.user_claim)."
        return _refused("no_account", "No rights here", detail)
    named = [options.roles[each] for each in _values(claims, options.role_claim) if each in options.roles]
    role = min(named, key=_STRONGEST.__getitem__) if named else options.default_role
    if role is None:
        detail = f"No value of the claim {options.role_claim} of {user} gives a role (auth.oidc.roles)."
        return _refused("no_account", "No rights here", detail)
    ends = int(claims["exp"]) + options.clock_skew_s
    if role in UNBOUND_ROLES:
        return Principal(user=user, role=role, source="oidc", tenants=None, ends_wall_s=ends)
    tenants = _tenants(options, claims)
    if not tenants:
        detail = (
            f"No value of the claim {options.tenants_claim} of {user} names a tenant (auth.oidc.tenants)."
        )
        return _refused("no_account", "No rights here", detail)
    return Principal(user=user, role=role, source="oidc", tenants=tenants, ends_wall_s=ends)


def _tenants(options: OidcOptions, claims: Mapping[str, Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for value in _values(claims, options.tenants_claim):
        name = options.tenants.get(value, "") if options.tenants else value
        try:
            found[fields.tenant(name)] = None
        except Unacceptable:
            continue  # a group that has nothing to do with this cluster
    return tuple(found)[:MAX_TENANTS_OF_TOKEN]


def _values(claims: Mapping[str, Any], name: str) -> list[str]:
    """A claim of that name, else the value at that path: realm_access.roles."""
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    values = found if isinstance(found, list) else [found]
    return [each for each in values[:MAX_VALUES] if isinstance(each, str)]


def _wrong(detail: str) -> Problem:
    return _refused("wrong_token", "The token is wrong", detail)


def _refused(code: str, title: str, detail: str) -> Problem:
    return Problem(status=403, code=code, title=title, detail=detail, facts={"why": detail})
