"""Access control, decided before any part of a request is read. Tokens are never logged or shown."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from dgpu.service.rest.sessions import Sessions, cookie_of
from dgpu.wire.answers import Problem

SESSION_PATH = "/api/v1/session"
CODE_PATH = "/api/v1/session/code"
OPEN_PATHS = frozenset({"/health", "/ready"})  # they reveal nothing secret, and probes have no token
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
MAX_FAILURES = 10
FAILURE_SECONDS = 60.0
MAX_WATCHED = 1_024
_TOKEN_BYTES = 32


class Peer(NamedTuple):
    """The peer of a connection. `uid` None: not on this machine, or unknown."""

    uid: int | None


Admitted = Literal["open", "user", "token", "cookie"]  # the reason for admission


class Access:
    """`loopback`: all users except the scheduler's own user and root need a token. `none`: no user needs one."""

    def __init__(
        self,
        *,
        mode: Literal["loopback", "none"],
        token: str,
        clock: Callable[[], float],
        hosts: frozenset[str] = frozenset(),
        own_uid: int | None = None,
        lasting_clock: Callable[[], float] | None = None,  # continues after a restart; None: the wall clock
    ) -> None:
        self.mode = mode
        self._token = token.encode()
        self._clock = clock
        self._hosts = {_host_name(host) for host in hosts} | {"localhost"}
        self._good_hosts: set[bytes] = set()  # header values that passed the check, as sent
        self._trusted = frozenset({0, os.getuid() if own_uid is None else own_uid})
        self._failures: dict[int | None, tuple[float, int]] = {}
        self.sessions = Sessions(token, clock, lasting_clock or time.time)

    def refuse(self, method: str, path: str, headers: dict[bytes, bytes], peer: Peer) -> Problem | None:
        """Why this request is refused; None: it is allowed, unless `wrong_content` refuses its body."""
        if path in OPEN_PATHS and method in READING_METHODS:
            return None
        refused = self.wrong_host(headers) or (None if method in READING_METHODS else _wrong_origin(headers))
        if refused is not None:
            return refused
        if path == SESSION_PATH and method == "POST":  # a client presents its code here
            return self._limited(peer)
        who = self.admit(headers, peer)
        if isinstance(who, Problem):
            return who
        return None if method in READING_METHODS else _wrong_cookie_use(who, path, headers)

    def repeated_host(self, headers: list[tuple[bytes, bytes]]) -> Problem | None:
        """RFC 9112: a proxy may route by one Host while this server checks another, so a second one is an error."""
        if sum(name == b"host" for name, _ in headers) < 2:
            return None
        detail = "The request has more than one Host header, expected exactly one."
        return _problem(400, "repeated_host", "Repeated Host header", detail)

    def wrong_host(self, headers: dict[bytes, bytes]) -> Problem | None:
        """A foreign name means that DNS directed a page to this address. An IP address cannot be misused that way."""
        given = headers.get(b"host", b"")
        if given in self._good_hosts:
            return None
        host = _host_name(given.decode("latin-1"))
        if host in self._hosts or _is_address(host):
            if len(self._good_hosts) < MAX_WATCHED:
                self._good_hosts.add(given)
            return None
        return _problem(
            421,
            "wrong_host",
            "Wrong host",
            f"This scheduler is not named {host[:100]!r}. Use its address or localhost.",
        )

    def admit(self, headers: dict[bytes, bytes], peer: Peer) -> Admitted | Problem:
        if self.mode == "none":
            return "open"
        if peer.uid is not None and peer.uid in self._trusted:
            return "user"
        if (cookie := cookie_of(headers)) and self.sessions.knows(cookie):
            return "cookie"
        if (limited := self._limited(peer)) is not None:
            return limited
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not given:
            return _problem(
                401,
                "token_needed",
                "A token is needed",
                "Only the scheduler's own user needs no token. Send Authorization: Bearer with its token.",
            )
        if scheme.lower() == b"bearer" and self._token and hmac.compare_digest(given.strip(), self._token):
            self._failures.pop(peer.uid, None)
            return "token"
        self.count_failure(peer)
        return _problem(403, "wrong_token", "The token is wrong", "This token is not the scheduler's.")

    def _limited(self, peer: Peer) -> Problem | None:
        since, number = self._failures.get(peer.uid, (0.0, 0))
        if number < MAX_FAILURES or self._clock() - since >= FAILURE_SECONDS:
            return None
        detail = "Too many wrong tokens or codes. Try again in a minute."
        return _problem(429, "too_many_failures", "Too many failures", detail)

    def count_failure(self, peer: Peer) -> None:
        uid = peer.uid
        now = self._clock()
        since, number = self._failures.get(uid, (now, 0))
        if now - since >= FAILURE_SECONDS:
            since, number = now, 0
        if uid not in self._failures and len(self._failures) >= MAX_WATCHED:
            del self._failures[next(iter(self._failures))]
        self._failures[uid] = (since, number + 1)


def load_token(path: Path) -> str:
    """The token of this data directory, created at the first start, readable only by its owner."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        token = _stored_token(path)
        if len(token) >= _TOKEN_BYTES:
            return token
        # A crash during the write: no client can have this token.
        path.unlink()
        return load_token(path)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _stored_token(path: Path) -> str:
    """Raises OSError for a token that no client can send: a header takes only printable ASCII."""
    token = path.read_bytes().strip()
    for offset, byte in enumerate(token):
        if not 0x21 <= byte <= 0x7E:
            raise OSError(
                errno.EILSEQ,
                f"the token has byte 0x{byte:02x} at offset {offset}, expected printable ASCII without spaces. "
                "Delete the file: the next start creates a new token",
                str(path),
            )
    return token.decode("ascii")


def _wrong_origin(headers: dict[bytes, bytes]) -> Problem | None:
    """A browser names the page that sends a write. Only pages of this server may write."""
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"none")
    if origin is None and site in {b"none", b"same-origin"}:
        return None
    host = headers.get(b"host", b"")
    if origin in {b"http://" + host, b"https://" + host} and site in {b"none", b"same-origin"}:
        return None
    return _problem(
        403, "foreign_origin", "Foreign origin", "Web pages of another origin may not change anything here."
    )


def _wrong_cookie_use(who: Admitted, path: str, headers: dict[bytes, bytes]) -> Problem | None:
    """A browser sends the cookie with any page's request, so a write must provably come from a page of this server."""
    if who != "cookie":
        return None
    if path == CODE_PATH:
        detail = "Only the scheduler's own user, or its token, can grant access."
        return _problem(403, "not_by_cookie", "Not with a browser's session", detail)
    if b"origin" in headers or headers.get(b"sec-fetch-site") == b"same-origin":
        return None  # not foreign: that was checked before
    detail = "A browser's session changes things only from the dashboard's own pages; other programs use the token."
    return _problem(403, "foreign_origin", "Foreign origin", detail)


def wrong_content(method: str, headers: dict[bytes, bytes]) -> Problem | None:
    """Any web page can send a form without asking first, but a form is never JSON.

    Checked after the call is known: a method that the call does not take must get 405, not a request for JSON.
    """
    if method not in BODY_METHODS:
        return None
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in {b"identity", b""}:
        given = encoding[:40].decode("latin-1")
        detail = f"Content-Encoding is {given!r}, expected none or identity: send the body uncompressed."
        return _problem(415, "unsupported_encoding", "Unsupported encoding", detail)
    kind, _, parameters = headers.get(b"content-type", b"").partition(b";")
    charset = parameters.strip().lower()
    if kind.strip().lower() == b"application/json" and charset in {b"", b"charset=utf-8", b'charset="utf-8"'}:
        return None
    return _problem(
        415,
        "json_needed",
        "JSON is needed",
        "Send the body as UTF-8 JSON with Content-Type: application/json.",
    )


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0][1:]
    return header.partition(":")[0].lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _problem(status: int, code: str, title: str, detail: str) -> Problem:
    return Problem(status=status, code=code, title=title, detail=detail)
