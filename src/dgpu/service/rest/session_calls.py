"""How a browser gets its session: the calls on /api/v1/session, answered without the frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from dgpu.service.access.principal import Principal
from dgpu.service.access.token_book import MAX_SECRET_CHARS
from dgpu.service.rest.access import CODE_PATH, SESSION_PATH, Access
from dgpu.service.rest.backend import ProblemError
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.sessions import CODE_SECONDS, COOKIE_SECONDS, MAX_CODE_CHARS
from dgpu.service.rest.submit import read_body
from dgpu.wire.answers import FieldError, Problem, SessionAnswer, SessionCode
from dgpu.wire.json_body import BadRequest, parse_json

MAX_BODY_BYTES = 4_096
PATHS = frozenset({SESSION_PATH, CODE_PATH})
_JSON = (b"content-type", b"application/json")
_BY_SOURCE = {"open": "open", "uid": "user", "token": "token", "oidc": "token", "session": "cookie"}
ALLOWED = {SESSION_PATH: "GET, POST, DELETE", CODE_PATH: "POST"}


class Answered(NamedTuple):
    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


async def answer(access: Access, scope: Any, headers: dict[bytes, bytes], receive: Any) -> Answered | None:
    """None: another method. `Access.enter` has already found the principal."""
    method, path, state = scope["method"], scope["path"], scope["state"]
    if path == CODE_PATH:
        return await _give_code(access, state["principal"], headers, receive) if method == "POST" else None
    if method == "POST":
        return await _sign_in(access, headers, state.get("peer", Peer(uid=None)), receive)
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


async def _sign_in(access: Access, headers: dict[bytes, bytes], peer: Peer, receive: Any) -> Answered:
    """Each way gives a new session. A session that the browser already has ends: it is never upgraded."""
    given = await _fields(headers, receive, known=frozenset(_WAYS))
    if len(given) != 1:
        raise BadRequest("malformed_request", f"The body must have exactly one of: {', '.join(_WAYS)}.")
    ((way, value),) = given.items()
    who = _WAYS[way](access, value, peer)
    seconds = COOKIE_SECONDS
    if who.ends_wall_s:
        seconds = max(1, min(seconds, who.ends_wall_s - access.now_wall_s()))
    cookie = access.sessions.open(who, seconds=seconds)
    if access.end_session(headers):
        await access.sessions.ended.save()
    return Answered(204, b"", [(b"set-cookie", access.sessions.set_cookie(headers, cookie, seconds))])


async def _sign_out(access: Access, headers: dict[bytes, bytes]) -> Answered:
    if access.end_session(headers):
        await access.sessions.ended.save()
    return Answered(204, b"", [(b"set-cookie", access.sessions.set_cookie(headers, ""))])


def _by_code(access: Access, code: Any, peer: Peer) -> Principal:
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


def _by_token(access: Access, token: Any, peer: Peer) -> Principal:
    if not isinstance(token, str) or not 0 < len(token.strip()) <= MAX_SECRET_CHARS:
        raise _wrong_field("token", "Expected an API token: dgpu_ and more.")
    found = access.by_secret(token.strip(), peer)
    if isinstance(found, Problem):
        raise ProblemError(found)
    return found


_WAYS: Final[dict[str, Callable[[Access, Any, Peer], Principal]]] = {"code": _by_code, "token": _by_token}


def _wrong_field(path: str, detail: str) -> BadRequest:
    return BadRequest("invalid_field", f"{path}: {detail}", errors=[FieldError(path=path, detail=detail)])


async def _fields(headers: dict[bytes, bytes], receive: Any, *, known: frozenset[str]) -> dict[str, Any]:
    body = await read_body(headers, receive, MAX_BODY_BYTES)
    raw = parse_json(body) if body.strip() else {}
    if type(raw) is not dict or raw.keys() - known:
        expected = "{" + ", ".join(f'"{name}": "..."' for name in known) + "}"
        raise BadRequest("malformed_request", f"The body must be {expected}.")
    return raw
