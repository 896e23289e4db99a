"""The sign-in of a browser: authorization code with PKCE. State, nonce and verifier are in a signed cookie of that
browser, so no list of strangers has to be kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from dgpu.service.access.principal import Principal
from dgpu.service.oidc.options import OidcOptions
from dgpu.service.oidc.provider import CodeRefused, Provider, ProviderAway
from dgpu.service.oidc.verifier import Verifier
from dgpu.service.oidc.words import ATTEMPT_SECONDS, Attempt
from dgpu.wire.answers import Problem

MAX_EXCHANGES: Final = 8  # at the same time
MAX_USED: Final = 4_096
_RANDOM_BYTES: Final = 32


class Begun(NamedTuple):
    url: str
    attempt: Attempt


class Oidc:
    """Everything about the provider, for the door and for the calls of browsers."""

    def __init__(self, options: OidcOptions, clock: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self.options = options
        self._wall_s = wall_s
        self._provider = Provider(options)
        self.tokens = Verifier(options, self._provider, clock, wall_s)
        self._exchanges = 0
        self._used: OrderedDict[str, None] = OrderedDict()  # states; the provider refuses a used code anyway

    async def close(self) -> None:
        await self.tokens.close()
        await self._provider.close()

    @property
    def name(self) -> str:
        return self.options.name or urlsplit(self.options.issuer).hostname or self.options.issuer

    async def begin(self, host: str) -> Begun | Problem:
        """Where the browser goes. `host`: under which it reached this scheduler."""
        home = urlsplit(self.options.redirect_url)
        if host.lower() != home.netloc.lower():
            detail = (
                f"The identity provider sends you back to {home.netloc}, and this page is at {host[:100]!r}. "
                f"Open {home.scheme}://{home.netloc}/ and sign in there."
            )
            told = {"home": f"{home.scheme}://{home.netloc}/", "host": host[:100]}
            return Problem(
                status=409, code="other_address", title="Another address", detail=detail, facts=told
            )
        facts = await self.tokens.need_facts()
        if isinstance(facts, Problem):
            return facts
        if not facts.metadata.authorization_endpoint or not facts.metadata.token_endpoint:
            detail = "The identity provider offers no sign-in for browsers."
            return Problem(status=503, code="oidc_away", title="No sign-in", detail=detail)
        attempt = Attempt(
            state=secrets.token_urlsafe(_RANDOM_BYTES),
            nonce=secrets.token_urlsafe(_RANDOM_BYTES),
            verifier=secrets.token_urlsafe(_RANDOM_BYTES),
            until_s=int(self._wall_s()) + ATTEMPT_SECONDS,
        )
        asked = {
            "response_type": "code",
            "client_id": self.options.client_id,
            "redirect_uri": self.options.redirect_url,
            "scope": " ".join(self.options.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": _challenge(attempt.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = facts.metadata.authorization_endpoint
        return Begun(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}", attempt)

    async def finish(self, attempt: Attempt | None, state: str, code: str) -> Principal | Problem:
        """The browser came back. A state works once, in the browser that began, for ten minutes."""
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()):
            return _begin_again("This browser did not begin this sign-in.")
        if attempt.until_s <= self._wall_s():
            return _begin_again("The sign-in took longer than ten minutes.")
        if state in self._used:
            return _begin_again("This sign-in was used already.")
        if self._exchanges >= MAX_EXCHANGES:
            return self._busy()
        self._used[state] = None
        while len(self._used) > MAX_USED:
            self._used.popitem(last=False)
        self._exchanges += 1
        try:
            return await self._exchange(attempt, code)
        finally:
            self._exchanges -= 1

    async def _exchange(self, attempt: Attempt, code: str) -> Principal | Problem:
        facts = await self.tokens.need_facts()
        if isinstance(facts, Problem):
            return facts
        try:
            token = await self._provider.id_token(facts.metadata, code, attempt.verifier)
        except CodeRefused as refused:
            return _begin_again(f"The identity provider refused it: {refused}.")
        except ProviderAway as away:
            detail = f"The identity provider cannot be asked: {away}. Try again, or use an API token."
            return Problem(
                status=503,
                code="oidc_away",
                title="Identity provider not available",
                detail=detail,
                facts={"why": str(away)},
            )
        await self.tokens.prepare(token.encode())
        return self.tokens.of_sign_in(token.encode(), attempt.nonce)

    def _busy(self) -> Problem:
        detail = f"{self._exchanges} people are signing in at this moment. Try again in a few seconds."
        return Problem(status=503, code="oidc_away", title="Busy", detail=detail)


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _begin_again(why: str) -> Problem:
    detail = f"{why} Sign in again."
    return Problem(status=403, code="wrong_sign_in", title="Sign in again", detail=detail, facts={"why": why})
