"""Admits requests to the proxy: by a cookie of one host, from a link that works once; or by an API token.

The session of the dashboard is never accepted here, and the cookie of a host is no session of the API.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from dgpu.service.access.principal import Principal
from dgpu.service.access.token_book import MARK
from dgpu.service.rest.access import Access
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.origins import problem
from dgpu.service.rest.sessions import Session, cookie_name, kind_of
from dgpu.wire.answers import Problem

LINK_SECONDS: Final = 300
COOKIE_SECONDS: Final = 86_400
MAX_LINKS: Final = 1_024  # unused ones; the oldest makes room
MAX_LINKS_OF_USER: Final = 32  # so that one user cannot drop the links of all others
TOKEN_HEADER: Final = b"x-dgpu-token"
ENTER_PATH: Final = "/.dgpu/enter"
_PURPOSE: Final = "port"
_COOKIE: Final = "dgpu_port"
_OWN_COOKIES: Final = ("dgpu_", "__Host-dgpu_")
_MAX_CODE_CHARS: Final = 64


class _Pass(msgspec.Struct, array_like=True, frozen=True):
    """The content of a cookie."""

    host: str
    session: Session


class _Link(NamedTuple):
    until_s: float
    host: str
    path: str
    who: Principal


_decode = msgspec.json.Decoder(_Pass).decode


class Entry:
    def __init__(self, access: Access, clock: Callable[[], float], *, over_tls: bool) -> None:
        self._access = access
        self._clock = clock
        self._over_tls = over_tls
        self._links: dict[bytes, _Link] = {}  # by the hash of the code; oldest first

    # Links

    def new_link(self, who: Principal, host: str, path: str) -> str:
        """The path that opens `path` on this host, once, for this user."""
        now = self._clock()
        self._links = {key: link for key, link in self._links.items() if link.until_s > now}
        own = [key for key, link in self._links.items() if link.who.user == who.user]
        if len(own) >= MAX_LINKS_OF_USER:
            del self._links[own[0]]
        elif len(self._links) >= MAX_LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(24)
        self._links[_hashed(code)] = _Link(now + LINK_SECONDS, host, path, who)
        return f"{ENTER_PATH}?code={code}"

    def redeem(self, code: str, host: str, headers: Mapping[bytes, bytes]) -> tuple[str, bytes] | None:
        """The path to open, and the line of the cookie. None: unknown, used, expired, or of another host."""
        link = self._links.pop(_hashed(code[:_MAX_CODE_CHARS]), None)
        if link is None or link.until_s <= self._clock() or link.host != host:
            return None
        session = self._session_of(link.who)
        value = self._access.sessions.signed(_PURPOSE, msgspec.json.encode(_Pass(host, session)))
        # Lax: a bookmark and a link of the dashboard work, requests that other sites make do not carry it.
        secure = "; Secure" if self._over_tls else ""
        name = self._cookie_name(headers)
        line = f"{name}={value}; Max-Age={COOKIE_SECONDS}; Path=/; HttpOnly; SameSite=Lax{secure}"
        return link.path, line.encode()

    def _session_of(self, who: Principal) -> Session:
        """Ends with the session or the identity that asked for the link."""
        now_s = int(self._access.sessions.now_s())
        until_s = now_s + COOKIE_SECONDS
        if who.session_id:
            until_s = min(until_s, who.session_until_s)
        if who.ends_wall_s:
            until_s = min(until_s, now_s + who.ends_wall_s - self._access.now_wall_s())
        kind = kind_of(who)
        is_vouched = kind == "oidc"
        return Session(
            id=who.session_id or secrets.token_urlsafe(12),
            until_s=until_s,
            kind=kind,
            token_id=who.token_id,
            issuer=self._access.issuer if is_vouched else "",
            user=who.user if is_vouched else "",
            role=who.role.value if is_vouched else "",
            tenants=who.tenants if is_vouched else (),
        )

    # Requests

    def admit(
        self, method: str, host: str, headers: Mapping[bytes, bytes], peer: Peer
    ) -> Principal | Problem:
        """The principal of a request. Its rights are those of now."""
        if (token := _token_of(headers)) is not None:
            return self._access.admit({b"authorization": b"Bearer " + token}, peer)
        if (foreign := wrong_page(method, headers)) is not None:
            return foreign
        if self._access.mode == "none":
            return self._access.admit({}, peer)
        value = _cookie_value(headers, self._cookie_name(headers))
        content = self._access.sessions.content_of(_PURPOSE, value) if value else None
        if content is not None:
            given = _decode(content)
            if given.host == host:
                return self._access.by_session(given.session)
        if _is_browser(headers):
            detail = "Open it with a new link: from the page of the task, or dgpu link."
            return problem(401, "link_needed", "A link is needed", detail)
        return self._access.admit({}, peer)

    def is_secret(self, authorization: bytes) -> bool:
        """A credential of dgpu, which no program of a task may see."""
        secret = authorization.partition(b" ")[2].strip()
        return secret.startswith(MARK) or self._access.is_owner_token(secret)

    def _cookie_name(self, headers: Mapping[bytes, bytes]) -> str:
        name = cookie_name(dict(headers), _COOKIE)
        return f"__Host-{name}" if self._over_tls else name


def wrong_page(method: str, headers: Mapping[bytes, bytes]) -> Problem | None:
    """Pages of other hosts may only open a page here. Hosts below one domain count as the same site for browsers, so
    cookies alone do not keep tasks apart.
    """
    site, origin = headers.get(b"sec-fetch-site", b"none"), headers.get(b"origin")
    host = headers.get(b"host", b"")
    is_own = origin is None or origin in {b"http://" + host, b"https://" + host}
    if is_own and site in {b"none", b"same-origin"}:
        return None
    opens_page = (
        headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    )
    if opens_page and method in {"GET", "HEAD"}:
        return None
    return problem(
        403, "foreign_origin", "Foreign origin", "Pages of other hosts may not send requests to this one."
    )


def without_own_cookies(header: bytes) -> bytes:
    pairs = [pair.strip() for pair in header.decode("latin-1").split(";")]
    return "; ".join(pair for pair in pairs if pair and not pair.startswith(_OWN_COOKIES)).encode("latin-1")


def sets_own_cookie(header: bytes) -> bool:
    return header.decode("latin-1").lstrip().startswith(_OWN_COOKIES)


def _token_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """None: the request has no API token. `Authorization` may belong to the program of the task."""
    if (token := headers.get(TOKEN_HEADER)) is not None:
        return token.strip()
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    secret = secret.strip()
    return secret if scheme.lower() == b"bearer" and secret.startswith(MARK) else None


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    return b"sec-fetch-site" in headers or b"origin" in headers


def _cookie_value(headers: Mapping[bytes, bytes], wanted: str) -> str:
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value.strip()
    return ""


def _hashed(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
