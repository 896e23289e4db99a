"""Calls about API tokens, and about the caller."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path, given
from dgpu.wire import answers
from dgpu.wire.token_answers import NewToken, TokenAnswer, TokenList, WhoAmI


class TokenCalls:
    @Call
    def whoami(self) -> Request[WhoAmI]:
        """The caller's user, role and tenants."""
        return Request("GET", api_path("whoami"), WhoAmI)

    @Call
    def sign_in_methods(self) -> Request[answers.SignInMethods]:
        """How people can sign in. Needs no token."""
        return Request("GET", api_path("session", "methods"), answers.SignInMethods)

    @Call
    def tokens(self) -> Request[Sequence[TokenAnswer]]:
        """API tokens without their secrets, oldest first."""
        return Request("GET", api_path("tokens"), TokenList).picking(lambda found: found.tokens)

    @Call
    def create_token(
        self,
        name: str,
        *,
        user: str | None = None,
        role: str | None = None,
        tenants: Sequence[str] | None = None,
        expires_in_seconds: int | None = None,
        scopes: Sequence[str] | None = None,
    ) -> Request[NewToken]:
        """The answer's `token` is the secret; it is shown only here. If the answer is lost, revoke the token and create
        another one: this call is not repeated.
        """
        body = given(
            name=name,
            user=user,
            role=role,
            tenants=None if tenants is None else list(tenants),
            expires_in_seconds=expires_in_seconds,
            scopes=None if scopes is None else list(scopes),
        )
        return Request("POST", api_path("tokens"), NewToken, body=body, is_repeatable=False)

    @Call
    def revoke_token(self, token_id: str) -> Request[None]:
        """The token is refused from the next request on."""
        return Request("DELETE", api_path("tokens", token_id), answers.Removed).picking(lambda _: None)
