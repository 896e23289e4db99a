"""The door: finds the principal of a request before anything of its body is read. No token is ever logged or shown."""

from __future__ import annotations

import hmac
import os
import pwd
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from dgpu.service.access.ended_sessions import EndedSessions
from dgpu.service.access.principal import STRANGER, Principal, owner
from dgpu.service.access.token_book import MARK, TokenBook, Unverified
from dgpu.service.oidc.words import looks_like_jwt
from dgpu.service.rest.failures import Failures, Peer
from dgpu.service.rest.origins import Hosts, problem, wrong_origin
from dgpu.service.rest.rates import Rates
from dgpu.service.rest.sessions import Session, Sessions, cookie_of
from dgpu.wire.answers import Problem
from dgpu.wire.roles import Role

if TYPE_CHECKING:
    from dgpu.service.oidc.sign_in import Oidc

SESSION_PATH = "/api/v1/session"
SESSION_ENDED = "session_ended"  # the code of the problem
CODE_PATH = "/api/v1/session/code"
OIDC_PATH = "/api/v1/session/oidc"
METHODS_PATH = "/api/v1/session/methods"
SIGN_IN_PATHS = frozenset(
    {SESSION_PATH, OIDC_PATH}
)  # a POST here proves an identity, or asks where to get one
OPEN_PATHS = frozenset({"/health", "/ready"})  # they reveal nothing secret, and probes have no token
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Access:
    """`loopback`: all users except the scheduler's own user and root need a token. `none`: no user needs one.

    An API token goes before all of that, and so does a browser's session: a client that sends one acts with its rights,
    and not with those of its uid.
    """

    def __init__(
        self,
        *,
        mode: Literal["loopback", "none"],
        token: str,
        clock: Callable[[], float],
        hosts: frozenset[str] = frozenset(),
        own_uid: int | None = None,
        lasting_clock: Callable[[], float] | None = None,  # continues after a restart; None: the wall clock
        tokens: TokenBook | None = None,
        over_tls: bool = False,
        requests_per_second: float = 0,
        ended: EndedSessions | None = None,
        oidc: Oidc | None = None,
    ) -> None:
        self.mode = mode
        self._token = token.encode()
        self.hosts = Hosts(hosts)
        self.failures = Failures(clock)
        self._rates = Rates(requests_per_second, clock)
        self.sessions = Sessions(token, clock, lasting_clock or time.time, over_tls=over_tls, ended=ended)
        self.tokens = tokens
        self.oidc = oidc  # None: no identity provider
        own = os.getuid() if own_uid is None else own_uid
        self._trusted = {uid: owner(user_name(uid), "uid") for uid in (0, own)}
        self._open = owner("anyone", "open")
        self._by_owner_token = owner(user_name(own), "token")
        self._owner_session = owner(user_name(own), "session")

    def enter(self, method: str, path: str, headers: dict[bytes, bytes], peer: Peer) -> Principal | Problem:
        """The principal; or why this request is not carried out, whatever its action is."""
        if path in OPEN_PATHS and method in READING_METHODS:
            return STRANGER
        refused = self.hosts.wrong(headers) or (None if method in READING_METHODS else wrong_origin(headers))
        if refused is not None:
            return refused
        if path == METHODS_PATH and method in READING_METHODS:
            return STRANGER
        if path in SIGN_IN_PATHS and method == "POST":
            return self.failures.limited(peer) or STRANGER
        who = self.admit(headers, peer)
        if isinstance(who, Problem):
            return who
        if (limited := self._rates.limited(who)) is not None:
            return limited
        if method in READING_METHODS:
            return who
        return _wrong_session_use(who, path, headers) or who

    def admit(self, headers: dict[bytes, bytes], peer: Peer) -> Principal | Problem:
        if self.mode == "none":
            return self._open
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        secret = secret.strip()
        if secret.startswith(MARK) and scheme.lower() == b"bearer":
            return self._by_api_token(secret, peer)
        if self.oidc is not None and _is_jwt(scheme, secret):
            return self._by_jwt(self.oidc, secret, peer)
        if (
            not scheme
            and (cookie := cookie_of(headers))
            and (session := self.sessions.find(cookie)) is not None
        ):
            return self.by_session(session)
        if peer.uid is not None and (trusted := self._trusted.get(peer.uid)) is not None:
            return trusted
        if (limited := self.failures.limited(peer)) is not None:
            return limited
        if not secret:
            detail = "Only the scheduler's own user needs no token. Send Authorization: Bearer with a token."
            return problem(401, "token_needed", "A token is needed", detail)
        if scheme.lower() == b"bearer" and self._token and hmac.compare_digest(secret, self._token):
            self.failures.forgive(peer)
            return self._by_owner_token
        return self._wrong_token(peer)

    def _by_api_token(self, secret: bytes, peer: Peer) -> Principal | Problem:
        if (limited := self.failures.limited(peer)) is not None:
            return limited
        found: Principal | Unverified = "wrong" if self.tokens is None else self.tokens.verify(secret)
        if found == "wrong":
            return self._wrong_token(peer)
        if isinstance(found, Principal):
            return found
        return _dead_token(found)

    async def prepare(self, headers: dict[bytes, bytes], peer: Peer) -> None:
        """Before `enter`, which never waits: reads the keys of the identity provider, if they are needed now."""
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if self.oidc is not None and _is_jwt(scheme, secret.strip()) and self.failures.limited(peer) is None:
            await self.oidc.tokens.prepare(secret.strip())

    def _by_jwt(self, oidc: Oidc, secret: bytes, peer: Peer) -> Principal | Problem:
        if (limited := self.failures.limited(peer)) is not None:
            return limited
        found = oidc.tokens.of_api(secret)
        if isinstance(found, Problem) and found.code == "wrong_token":
            self.failures.count(peer)
        return found

    def by_secret(self, secret: str, peer: Peer) -> Principal | Problem:
        """The principal of a token that a browser sent to sign in."""
        written = secret.encode()
        if written.startswith(MARK):
            return self._by_api_token(written, peer)
        if (limited := self.failures.limited(peer)) is not None:
            return limited
        if self._token and hmac.compare_digest(written, self._token):
            return self._by_owner_token
        return self._wrong_token(peer)

    def by_session(self, session: Session) -> Principal | Problem:
        """Rights are never those of the moment of signing in: a token that was revoked ends its sessions."""
        found: Principal | Unverified | None = None
        if not self.sessions.is_over(session):
            if session.kind == "owner":
                found = self._owner_session
            elif session.kind == "token" and self.tokens is not None:
                found = self.tokens.principal_of(session.token_id)
            elif session.kind == "oidc" and session.issuer == self.issuer and session.role in set(Role):
                found = Principal(
                    user=session.user, role=Role(session.role), source="session", tenants=session.tenants
                )
        if isinstance(found, Principal):
            return replace(found, source="session", session_id=session.id, session_until_s=session.until_s)
        why = (
            f"its token is {found}" if found in {"revoked", "expired"} else "it has expired or was signed out"
        )
        return problem(401, SESSION_ENDED, "The session has ended", f"Sign in again: {why}.")

    def still_admits(self, who: Principal) -> bool:
        """For streams, which run long after their request was admitted."""
        if who.token_id and (self.tokens is None or not self.tokens.is_good(who.token_id)):
            return False
        if who.session_id and self.sessions.has_ended(who.session_id, who.session_until_s):
            return False
        return not who.ends_wall_s or self.now_wall_s() < who.ends_wall_s

    @property
    def issuer(self) -> str:
        return "" if self.oidc is None else self.oidc.options.issuer

    def now_wall_s(self) -> int:
        """By the wall clock that the scheduler shows."""
        return self.tokens.now_wall_ms() // 1_000 if self.tokens is not None else int(time.time())

    def is_owner_token(self, secret: bytes) -> bool:
        return bool(self._token) and hmac.compare_digest(secret, self._token)

    def end_session(self, headers: dict[bytes, bytes]) -> bool:
        """False: this request has none."""
        session = self.sessions.find(cookie_of(headers))
        if session is None:
            return False
        self.sessions.end(session)
        return True

    def _wrong_token(self, peer: Peer) -> Problem:
        self.failures.count(peer)
        return problem(403, "wrong_token", "The token is wrong", "This scheduler does not know this token.")


def _is_jwt(scheme: bytes, secret: bytes) -> bool:
    return scheme.lower() == b"bearer" and looks_like_jwt(secret)


def _dead_token(found: Unverified) -> Problem:
    detail = f"This token is {found}. Ask an administrator for another one: dgpu token create."
    return problem(401, f"token_{found}", f"The token is {found}", detail)


def _wrong_session_use(who: Principal, path: str, headers: dict[bytes, bytes]) -> Problem | None:
    """A browser sends the cookie with any page's request, so a write must provably come from a page of this server."""
    if not who.session_id:
        return None
    if path == CODE_PATH:  # the new session would outlive this one
        detail = "A session opens no other session. Use dgpu dashboard, or sign in."
        return problem(403, "not_by_cookie", "Not with a session", detail)
    if b"origin" in headers or headers.get(b"sec-fetch-site") == b"same-origin":
        return None  # not foreign: that was checked before
    detail = (
        "A browser's session changes things only from the dashboard's own pages; other programs use a token."
    )
    return problem(403, "foreign_origin", "Foreign origin", detail)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
