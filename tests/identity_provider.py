"""A small identity provider on loopback: discovery, authorization, token and key endpoints, and ways to misbehave."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import secrets
import threading
import time
import urllib.parse
from typing import Any, Self

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

from dgpu.service.oidc.options import OidcOptions
from dgpu.wire.roles import Role

CLIENT = "dgpu-client"
SECRET = "s3cret of the client: /?&"


def new_key(kid: str, kind: str = "RSA") -> Key:
    parameters: Any = {"kid": kid, "use": "sig"}
    if kind == "EC":
        return ECKey.generate_key("P-256", parameters)
    return RSAKey.generate_key(2048, parameters)


@functools.cache
def _first_key() -> Key:
    return new_key("k1")


class IdentityProvider:
    """`account`: the claims of the person who signs in next. `changes`: replaces claims of the next tokens."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.issuer = f"http://{host}:{self.port}/realms/lab"
        self.key = _first_key()
        self.published = [self.key]
        self.account: dict[str, Any] = {
            "sub": "u-1",
            "preferred_username": "ann",
            "groups": ["vision", "All Staff"],
        }
        self.changes: dict[str, Any] = {}
        self.metadata_changes: dict[str, Any] = {}
        self.algorithm = "RS256"
        self.asked: list[str] = []  # paths, in order
        self.codes: dict[str, dict[str, str]] = {}
        self.secret = ""  # empty: a public client
        self.lifetime_s = 300  # of tokens
        self.refreshes: set[str] = set()  # refresh tokens that work
        self.needs_consent = False  # for a refresh token
        self.rotates = True  # a refresh token works once
        self.is_broken = False
        self.hold: threading.Event | None = None  # answers wait for it
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def count(self, path: str) -> int:
        return sum(asked == path for asked in self.asked)

    def token(
        self, nonce: str = "", *, key: Key | None = None, header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """Of the account; without claims whose new value is None."""
        now = int(time.time())
        given = {"iss": self.issuer, "aud": CLIENT, "exp": now + self.lifetime_s, "iat": now, **self.account}
        if nonce:
            given["nonce"] = nonce
        told = {
            name: value for name, value in {**given, **self.changes, **claims}.items() if value is not None
        }
        signer = key or self.key
        head = {"alg": self.algorithm, "kid": signer.kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return jwt.encode(head, told, signer, algorithms=[str(head["alg"])])

    def authorize(self, url: str) -> dict[str, str]:
        """Where the browser is sent back to, as its query."""
        asked = {
            name: values[0]
            for name, values in urllib.parse.parse_qs(urllib.parse.urlsplit(url).query).items()
        }
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(12)
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "to": asked["redirect_uri"]}

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                path = urllib.parse.urlsplit(self.path).path.removeprefix("/realms/lab")
                provider.asked.append(path)
                provider._wait()
                if provider.is_broken:
                    self._send(500, {"error": "down"})
                elif path == "/.well-known/openid-configuration":
                    self._send(200, provider._metadata())
                elif path == "/keys":
                    self._send(200, {"keys": [key.as_dict(private=False) for key in provider.published]})
                elif path == "/authorize":
                    back = provider.authorize(self.path)
                    where = f"{back.pop('to')}?{urllib.parse.urlencode(back)}"
                    self.send_response(302)
                    self.send_header("location", where)
                    self.send_header("content-length", "0")
                    self.end_headers()
                else:
                    self._send(404, {"error": path})

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                form = {
                    name: values[0]
                    for name, values in urllib.parse.parse_qs(self.rfile.read(length).decode()).items()
                }
                provider.asked.append("/token")
                provider._wait()
                if provider.is_broken:
                    self._send(500, {"error": "down"})
                    return
                self._send(*provider._exchange(form, self.headers.get("authorization", "")))

            def _send(self, status: int, answer: Any) -> None:
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler

    def _wait(self) -> None:
        if self.hold is not None:
            self.hold.wait(60)

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "scopes_supported": ["openid", "profile", "email", "offline_access"],
            **self.metadata_changes,
        }

    def _exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if form.get("grant_type") == "refresh_token":
            return self._refresh(form)
        asked = self.codes.pop(form.get("code", ""), None)  # a code works once
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        basic = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
        is_right = (
            asked is not None
            and form.get("grant_type") == "authorization_code"
            and form.get("redirect_uri") == asked["redirect_uri"]
            and form.get("client_id") == CLIENT
            and base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() == asked["code_challenge"]
            and authorization == (f"Basic {basic}" if self.secret else "")
        )
        if asked is None or not is_right:
            return 400, {"error": "invalid_grant"}
        told = {"id_token": self.token(asked["nonce"]), "access_token": "opaque", "token_type": "Bearer"}
        is_allowed = asked.get("prompt") == "consent" or not self.needs_consent
        is_asked = "offline_access" in asked["scope"].split()
        return 200, told | (self._new_refresh() if is_asked and is_allowed else {})

    def _refresh(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        given = form.get("refresh_token", "")
        if given not in self.refreshes or form.get("client_id") != CLIENT:
            self.refreshes.clear()  # a token that is used twice may be stolen
            return 400, {"error": "invalid_grant"}
        told: dict[str, Any] = {"id_token": self.token(), "access_token": "opaque", "token_type": "Bearer"}
        if self.rotates:
            self.refreshes.discard(given)
            told |= self._new_refresh()
        return 200, told

    def _new_refresh(self) -> dict[str, str]:
        made = secrets.token_urlsafe(32)
        self.refreshes.add(made)
        return {"refresh_token": made}


def oidc_options(provider: IdentityProvider, url: str, **more: Any) -> OidcOptions:
    given = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "redirect_url": f"{url}/login",
        "timeout_s": 20.0,
    }
    roles = {"gpu-admins": Role.ADMIN, "gpu-operators": Role.OPERATOR}
    return OidcOptions(**{**given, "roles": roles, **more})  # type: ignore[arg-type]
