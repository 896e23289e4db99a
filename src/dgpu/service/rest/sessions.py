"""Sessions of browsers: signed cookies that name a principal. Only unused codes and ended sessions are stored.

A cookie contains its session and is signed with the scheduler's token, so it survives a restart; a new token ends all
sessions. A session that is bound to an API token contains no rights: those of the token count, at each request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from dgpu.service.access.ended_sessions import EndedSessions
from dgpu.service.access.principal import Principal

CODE_SECONDS = 300.0
MAX_CODES = 64
COOKIE_SECONDS = 7 * 86_400
MAX_COOKIE_CHARS = 3_800  # browsers drop cookies of more than 4,096 bytes
MAX_CODE_CHARS = 64
_CODE_BYTES = 24
_ID_BYTES = 12
_SESSION = "session"

Kind = Literal["owner", "token", "oidc", "open"]  # open: no identity was asked for, so it proves none later


class Session(msgspec.Struct, array_like=True, frozen=True):
    """The content of a cookie."""

    id: str
    until_s: int
    kind: Kind
    token_id: str = ""
    # Of an identity that another service vouched for:
    issuer: str = ""
    user: str = ""
    role: str = ""
    tenants: tuple[str, ...] | None = ()


class SessionTooLarge(ValueError):  # noqa: N818 - the name states the failure
    """The cookie would be larger than browsers store."""


class _Code(NamedTuple):
    until_s: float
    principal: Principal


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Session)


class Sessions:
    def __init__(
        self,
        token: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        *,
        over_tls: bool = False,
        ended: EndedSessions | None = None,
    ) -> None:
        secret = token.encode() or secrets.token_bytes(32)
        self._key = hashlib.sha256(b"dgpu browser session 2\0" + secret).digest()
        self._clock = clock
        self._wall_clock = wall_clock
        self._over_tls = over_tls
        self.ended = EndedSessions() if ended is None else ended
        self._codes: dict[bytes, _Code] = {}  # by the hash of an unused code; oldest first

    def set_cookie(self, headers: dict[bytes, bytes], value: str, age_s: int = 0) -> bytes:
        """Without a value, the browser deletes the cookie."""
        return self.cookie_line(cookie_name(headers), value, age_s)

    def cookie_line(self, name: str, value: str, age_s: int) -> bytes:
        """Over TLS, the browser never sends the cookie in plain text."""
        secure = "; Secure" if self._over_tls else ""
        return f"{name}={value}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{secure}".encode()

    def new_code(self, who: Principal) -> str:
        """Drops the oldest unused code if there are too many."""
        now = self._clock()
        self._codes = {key: code for key, code in self._codes.items() if code.until_s > now}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._codes[_hashed(code)] = _Code(now + CODE_SECONDS, who)
        return code

    def redeem(self, code: str) -> Principal | None:
        """The principal that asked for the code; None: unknown, used, or expired."""
        found = self._codes.pop(_hashed(code[:MAX_CODE_CHARS]), None)
        return None if found is None or found.until_s <= self._clock() else found.principal

    def open(self, who: Principal, *, seconds: int = COOKIE_SECONDS, issuer: str = "") -> str:
        """The value of a new cookie, with an id of its own. Raises SessionTooLarge."""
        kind = kind_of(who)
        session = Session(
            id=secrets.token_urlsafe(_ID_BYTES),
            until_s=int(self._wall_clock()) + seconds,
            kind=kind,
            token_id=who.token_id,
        )
        if kind == "oidc":
            session = msgspec.structs.replace(
                session, issuer=issuer, user=who.user, role=who.role.value, tenants=who.tenants
            )
        cookie = self.signed(_SESSION, _encoder.encode(session))
        if len(cookie) > MAX_COOKIE_CHARS:
            raise SessionTooLarge
        return cookie

    def find(self, cookie: str) -> Session | None:
        """None: not signed here. The session may be over."""
        content = self.content_of(_SESSION, cookie)
        if content is None:
            return None
        try:
            return _decoder.decode(content)
        except msgspec.DecodeError:
            return None

    def now_s(self) -> float:
        return self._wall_clock()

    def is_over(self, session: Session) -> bool:
        return self.has_ended(session.id, session.until_s)

    def has_ended(self, session_id: str, until_s: int) -> bool:
        return until_s <= self._wall_clock() or session_id in self.ended

    def end(self, session: Session) -> None:
        self.ended.add(session.id, session.until_s, self._wall_clock())

    def signed(self, purpose: str, content: bytes) -> str:
        """A cookie of one purpose is none of another."""
        text = base64.urlsafe_b64encode(content).rstrip(b"=").decode()
        return f"{text}.{self._signature(purpose, text)}"

    def content_of(self, purpose: str, cookie: str) -> bytes | None:
        text, _, signature = cookie.rpartition(".")
        if not cookie.isascii() or not hmac.compare_digest(self._signature(purpose, text), signature):
            return None
        try:
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error:
            return None

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()


def kind_of(who: Principal) -> Kind:
    if who.source == "open":
        return "open"
    return "owner" if who.is_owner else "token" if who.token_id else "oidc"


def _hashed(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()


def cookie_name(headers: dict[bytes, bytes], base: str = "dgpu_session") -> str:
    """Browsers do not separate cookies by port, so two schedulers on one machine need different names."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return f"{base}_{port.decode('latin-1')}" if port.isdigit() else base


def cookie_of(headers: dict[bytes, bytes], base: str = "dgpu_session") -> str:
    wanted = cookie_name(headers, base)
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value.strip()
    return ""
