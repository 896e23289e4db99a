"""How a browser gets its session: the calls on /api/v1/session, answered without the frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

import msgspec

from dgpu.service.access.principal import Principal
from dgpu.service.access.token_book import MAX_SECRET_CHARS
from dgpu.service.oidc.words import ATTEMPT_SECONDS, Attempt
from dgpu.service.oidc.words import MAX_CODE_CHARS as MAX_OIDC_CODE_CHARS
from dgpu.service.rest.access import CODE_PATH, METHODS_PATH, OIDC_PATH, SESSION_PATH, Access
from dgpu.service.rest.backend import ProblemError
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.sessions import (
    CODE_SECONDS,
    COOKIE_SECONDS,
    MAX_CODE_CHARS,
    SessionTooLarge,
    cookie_name,
    cookie_of,
)
from dgpu.service.rest.submit import read_body
from dgpu.wire.answers import (
    CliSignIn,
    FieldError,
    Problem,
    SessionAnswer,
    SessionCode,
    SignInAddress,
    SignInMethods,
)
from dgpu.wire.json_body import BadRequest, parse_json

if TYPE_CHECKING:
    from dgpu.service.oidc.options import OidcOptions
    from dgpu.service.oidc.sign_in import Oidc

MAX_BODY_BYTES = 16_384
PATHS = frozenset({SESSION_PATH, CODE_PATH, OIDC_PATH, METHODS_PATH})
_JSON = (b"content-type", b"application/json")
_BY_SOURCE = {"open": "open", "uid": "user", "token": "token", "oidc": "token", "session": "cookie"}
ALLOWED = {SESSION_PATH: "GET, POST, DELETE", CODE_PATH: "POST", OIDC_PATH: "POST", METHODS_PATH: "GET"}
_ATTEMPT = "dgpu_login"  # the cookie of a browser whose user is at the identity provider


class Answered(NamedTuple):
    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


async def answer(access: Access, scope: Any, headers: dict[bytes, bytes], receive: Any) -> Answered | None:
    """None: another method. `Access.enter` has already found the principal."""
    method, path, state = scope["method"], scope["path"], scope["state"]
    if path == CODE_PATH:
        return await _give_code(access, state["principal"], headers, receive) if method == "POST" else None
    if path == OIDC_PATH:
        return await _begin_oidc(access, headers, receive) if method == "POST" else None
    if path == METHODS_PATH:
        return _methods(access) if method in {"GET", "HEAD"} else None
    if method == "POST":
        return await _sign_in(access, headers, state, receive)
    if method == "DELETE":
        return await _sign_out(access, headers)
    if method in {"GET", "HEAD"}:
        by = _BY_SOURCE[state["principal"].source]
        return Answered(200, msgspec.json.encode(SessionAnswer(access=by)), [_JSON])
    return None


async def _give_code(access: Access, who: Principal, headers: dict[bytes, bytes], receive: Any) -> Answered:
    await _fields(headers, receive, known=frozenset())
    code = access.sessions.new_code(who)
    given = SessionCode(code=code, url_path=f"/#code={code}", expires_in_seconds=int(CODE_SECONDS))
    return Answered(201, msgspec.json.encode(given), [_JSON])


def _methods(access: Access) -> Answered:
    """For the login page, before anything is known about its user."""
    told = SignInMethods()
    if access.oidc is not None:
        told = SignInMethods(oidc=access.oidc.name, cli=_cli(access.oidc.options))
    return Answered(200, msgspec.json.encode(told), [_JSON])


def _cli(options: OidcOptions) -> CliSignIn | None:
    if not options.cli_client_id:
        return None
    return CliSignIn(issuer=options.issuer, client_id=options.cli_client_id, scopes=list(options.scopes))


async def _begin_oidc(access: Access, headers: dict[bytes, bytes], receive: Any) -> Answered:
    await _fields(headers, receive, known=frozenset())
    begun = await _oidc(access).begin(headers.get(b"host", b"").decode("latin-1"))
    if isinstance(begun, Problem):
        raise ProblemError(begun)
    cookie = access.sessions.signed(_ATTEMPT, msgspec.json.encode(begun.attempt))
    line = access.sessions.cookie_line(cookie_name(headers, _ATTEMPT), cookie, ATTEMPT_SECONDS)
    return Answered(200, msgspec.json.encode(SignInAddress(url=begun.url)), [_JSON, (b"set-cookie", line)])


async def _sign_in(
    access: Access, headers: dict[bytes, bytes], state: dict[str, Any], receive: Any
) -> Answered:
    """Each way gives a new session. A session that the browser already has ends: it is never upgraded."""
    given = await _fields(headers, receive, known=frozenset(_WAYS))
    if len(given) != 1:
        raise BadRequest("malformed_request", f"The body must have exactly one of: {', '.join(_WAYS)}.")
    ((way, value),) = given.items()
    who = await _WAYS[way](access, value, headers, state.get("peer", Peer(uid=None)))
    state["principal"] = who  # for the audit log: from here on the request is known
    seconds = COOKIE_SECONDS
    if way == "oidc":
        seconds = _oidc(access).options.session_s
    elif who.ends_wall_s:
        seconds = max(1, min(seconds, who.ends_wall_s - access.now_wall_s()))
    try:
        cookie = access.sessions.open(who, seconds=seconds, issuer=access.issuer)
    except SessionTooLarge:
        detail = (
            f"{who.user} has {len(who.tenants or ())} tenants, too many for a session: see auth.oidc.tenants."
        )
        raise ProblemError(
            Problem(
                status=403,
                code="no_account",
                title="Too many tenants",
                detail=detail,
                facts={"why": detail},
            )
        ) from None
    if access.end_session(headers):
        await access.sessions.ended.save()
    told = [(b"set-cookie", access.sessions.set_cookie(headers, cookie, seconds))]
    if way == "oidc":
        told.append((b"set-cookie", access.sessions.cookie_line(cookie_name(headers, _ATTEMPT), "", 0)))
    return Answered(204, b"", told)


async def _sign_out(access: Access, headers: dict[bytes, bytes]) -> Answered:
    if access.end_session(headers):
        await access.sessions.ended.save()
    return Answered(204, b"", [(b"set-cookie", access.sessions.set_cookie(headers, ""))])


async def _by_code(access: Access, code: Any, _: dict[bytes, bytes], peer: Peer) -> Principal:
    if not isinstance(code, str) or not 0 < len(code) <= MAX_CODE_CHARS:
        raise _wrong_field("code", "Expected the code of an address that dgpu dashboard printed.")
    who = access.sessions.redeem(code)
    if who is None:
        access.failures.count(peer)
        detail = "This code was used, has expired, or is invalid. Get a new one: dgpu dashboard."
        raise ProblemError(
            Problem(status=403, code="wrong_code", title="The code does not work", detail=detail)
        )
    return who


async def _by_token(access: Access, token: Any, _: dict[bytes, bytes], peer: Peer) -> Principal:
    if not isinstance(token, str) or not 0 < len(token.strip()) <= MAX_SECRET_CHARS:
        raise _wrong_field("token", "Expected an API token: dgpu_ and more.")
    found = access.by_secret(token.strip(), peer)
    if isinstance(found, Problem):
        raise ProblemError(found)
    return found


async def _by_oidc(access: Access, given: Any, headers: dict[bytes, bytes], peer: Peer) -> Principal:
    code, state = (given.get("code"), given.get("state")) if isinstance(given, dict) else (None, None)
    if not _is_short_text(code) or not _is_short_text(state):
        raise _wrong_field(
            "oidc", "Expected the code and the state with which the identity provider came back."
        )
    content = access.sessions.content_of(_ATTEMPT, cookie_of(headers, _ATTEMPT))
    attempt = None if content is None else msgspec.json.decode(content, type=Attempt)
    found = await _oidc(access).finish(attempt, state, code)
    if isinstance(found, Problem):
        if found.status < 500:
            access.failures.count(peer)
        raise ProblemError(found)
    return found


_Way = Callable[[Access, Any, dict[bytes, bytes], Peer], Awaitable[Principal]]
_WAYS: Final[dict[str, _Way]] = {"code": _by_code, "token": _by_token, "oidc": _by_oidc}


def _oidc(access: Access) -> Oidc:
    if access.oidc is None:
        detail = "This scheduler has no identity provider (auth.oidc.issuer). Sign in with a token."
        raise ProblemError(Problem(status=404, code="no_oidc", title="No identity provider", detail=detail))
    return access.oidc


def _is_short_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_OIDC_CODE_CHARS


def _wrong_field(path: str, detail: str) -> BadRequest:
    return BadRequest("invalid_field", f"{path}: {detail}", errors=[FieldError(path=path, detail=detail)])


async def _fields(headers: dict[bytes, bytes], receive: Any, *, known: frozenset[str]) -> dict[str, Any]:
    body = await read_body(headers, receive, MAX_BODY_BYTES)
    raw = parse_json(body) if body.strip() else {}
    if type(raw) is not dict or raw.keys() - known:
        expected = "{" + ", ".join(f'"{name}": "..."' for name in known) + "}"
        raise BadRequest("malformed_request", f"The body must be {expected}.")
    return raw
