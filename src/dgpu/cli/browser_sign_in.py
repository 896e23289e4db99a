"""A person signs in at the identity provider with a browser: authorization code with PKCE, and a redirect to a port of
this machine (RFC 8252). Without a browser here, the address is printed, and the one where another browser ends can be
pasted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import os
import secrets
import select
import sys
import threading
import time
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from dgpu.cli.dashboard import open_browser
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.formats import one_line
from dgpu.client.credentials import Login
from dgpu.client.identity_provider import ProviderError, ask_provider, claims_of
from dgpu.client.renewal import sign_in_of
from dgpu.wire.address import is_safe_url

PATIENCE_SECONDS = 600.0
_OFFLINE = "offline_access"
_MAX_LINE = 8_192
_PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dgpu</title></head>
<body><p>dgpu has got the answer. You can close this page and go back to the terminal.</p></body></html>
"""


class _Answer(NamedTuple):
    """With which the browser came back."""

    code: str
    error: str = ""


def sign_in(issuer: str, client_id: str, scopes: list[str], *, consent: bool, opens: bool) -> Login:
    """The signed token of the account, and how to renew it if the provider allows that.

    The scheduler verifies the token; only what concerns this sign-in is checked here. `consent`: some providers give
    nothing to renew it without (OpenID Connect Core, 11). At others, only administrators may consent.
    `opens`: a browser of this machine, if there is one.
    """
    authorize, exchange, renewing = _endpoints(issuer)
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    with _Door(state) as door:
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": door.url,
            "scope": " ".join(dict.fromkeys([*scopes, *renewing])),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            **({"prompt": "consent"} if consent else {}),
        }
        address = f"{authorize}{'&' if '?' in authorize else '?'}{urlencode(asked)}"
        _show(address, opens=opens)
        code = door.wait()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": door.url,
            "client_id": client_id,
            "code_verifier": verifier,
        }
    told = _ask(exchange, form)
    token = told.get("id_token")
    if not isinstance(token, str) or claims_of(token).get("nonce") != nonce:
        raise CliFailure(f"{exchange} answered without an id_token of this sign-in.")
    return Login(token, sign_in_of(told, exchange, client_id))


def _show(address: str, *, opens: bool) -> None:
    if opens and open_browser(address):
        note("A browser opens. If it does not, open this address:")
    else:
        note("Open this address in a browser:")
    note(address)
    if sys.stdin.isatty():
        note(
            "If that browser is on another machine, it ends at an address of 127.0.0.1. Paste that address here:"
        )


class _Door:
    """A port of this machine that waits for the browser. Requests without the state are refused and change nothing."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._answer: _Answer | None = None
        self._here, self._there = os.pipe()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._visits())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        os.close(self._here)
        os.close(self._there)

    def wait(self) -> str:
        """The code."""
        sources: list[Any] = [self._here, *([sys.stdin] if sys.stdin.isatty() else [])]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._answer is None:
            ready, _, _ = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CliFailure(
                    f"Nobody signed in within {PATIENCE_SECONDS / 60:.0f} minutes.", ExitCode.TIMEOUT
                )
            if sys.stdin in ready:
                line = sys.stdin.readline(_MAX_LINE)
                if not line:
                    sources.remove(sys.stdin)
                elif line.strip() and not self.take(line.strip()):
                    note("This address does not belong to this sign-in. Paste the one of 127.0.0.1:")
        if self._answer.error:
            raise CliFailure(
                f"The identity provider refused: {one_line(self._answer.error)[:300]}", ExitCode.NOT_PERMITTED
            )
        return self._answer.code

    def take(self, address: str) -> bool:
        """Whether it is the end of this sign-in. The first one counts."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        if not hmac.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return False
        error = query.get("error_description") or query.get("error", "")
        if not error and not query.get("code"):
            return False
        if self._answer is None:
            self._answer = _Answer(query.get("code", ""), error)
            os.write(self._there, b".")
        return True

    def _visits(self) -> type[http.server.BaseHTTPRequestHandler]:
        door = self

        class ComingBack(http.server.BaseHTTPRequestHandler):
            timeout = 30.0

            def log_message(self, *_: Any) -> None:
                """Addresses hold codes: they are not printed."""

            def do_GET(self) -> None:
                is_ours = door.take(self.path)
                body = _PAGE if is_ours else b"Not of this sign-in.\n"
                self.send_response(200 if is_ours else 400)
                self.send_header("content-type", "text/html; charset=utf-8" if is_ours else "text/plain")
                self.send_header("content-length", str(len(body)))
                self.send_header("cache-control", "no-store")
                self.send_header("referrer-policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

        return ComingBack


def _endpoints(issuer: str) -> tuple[str, str, list[str]]:
    """Of authorization and of tokens, and the scope of a refresh token if the provider knows it."""
    if not is_safe_url(issuer):
        raise CliFailure(f"The scheduler names the issuer {one_line(issuer)[:200]!r}, expected https://…")
    found = _ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    addresses = [found.get(name) for name in ("authorization_endpoint", "token_endpoint")]
    authorize, exchange = (each if isinstance(each, str) and is_safe_url(each) else "" for each in addresses)
    if found.get("issuer") != issuer or not authorize or not exchange:
        raise CliFailure(f"{issuer} offers no sign-in for programs.")
    supported = found.get("scopes_supported")
    is_renewed = isinstance(supported, list) and _OFFLINE in supported
    return authorize, exchange, [_OFFLINE] if is_renewed else []


def _ask(url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
    try:
        return ask_provider(url, form)
    except ProviderError as error:
        raise CliFailure(f"{error}.") from None
