"""Sessions of browsers: a one-time code becomes a cookie. Only unused codes are stored.

A cookie contains its expiry and is signed with the scheduler's token, so it survives a restart; a new token ends all
sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

CODE_SECONDS = 300.0
MAX_CODES = 64
COOKIE_SECONDS = 7 * 86_400
MAX_CODE_CHARS = 64
_CODE_BYTES = 24


class Sessions:
    def __init__(
        self,
        token: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        *,
        over_tls: bool = False,
    ) -> None:
        secret = token.encode() or secrets.token_bytes(32)
        self._key = hashlib.sha256(b"dgpu browser session\0" + secret).digest()
        self._clock = clock
        self._wall_clock = wall_clock
        self._over_tls = over_tls
        self._codes: dict[bytes, float] = {}  # hash of an unused code: its expiry; oldest first

    def set_cookie(self, headers: dict[bytes, bytes], value: str) -> bytes:
        """Without a value, the browser deletes the cookie. Over TLS, the browser never sends it in plain text."""
        age = COOKIE_SECONDS if value else 0
        secure = "; Secure" if self._over_tls else ""
        return f"{cookie_name(headers)}={value}; Max-Age={age}; Path=/; HttpOnly; SameSite=Strict{secure}".encode()

    def new_code(self) -> str:
        """Drops the oldest unused code if there are too many."""
        now = self._clock()
        self._codes = {code: until for code, until in self._codes.items() if until > now}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._codes[_hashed(code)] = now + CODE_SECONDS
        return code

    def redeem(self, code: str) -> str | None:
        """The value of the cookie; None: unknown, used, or expired."""
        until = self._codes.pop(_hashed(code[:MAX_CODE_CHARS]), None)
        if until is None or until <= self._clock():
            return None
        return self._signed(f"{int(self._wall_clock()) + COOKIE_SECONDS}.{secrets.token_urlsafe(9)}")

    def knows(self, cookie: str) -> bool:
        words, _, _ = cookie.rpartition(".")
        until, _, _ = words.partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 13):
            return False
        signed = self._signed(words).encode("latin-1", "replace")
        return (
            hmac.compare_digest(signed, cookie.encode("latin-1", "replace"))
            and int(until) > self._wall_clock()
        )

    def _signed(self, words: str) -> str:
        return (
            f"{words}.{hmac.new(self._key, words.encode('latin-1', 'replace'), hashlib.sha256).hexdigest()}"
        )


def _hashed(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()


def cookie_name(headers: dict[bytes, bytes]) -> str:
    """Browsers do not separate cookies by port, so two schedulers on one machine need different names."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return f"dgpu_session_{port.decode('latin-1')}" if port.isdigit() else "dgpu_session"


def cookie_of(headers: dict[bytes, bytes]) -> str:
    wanted = cookie_name(headers)
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value.strip()
    return ""
