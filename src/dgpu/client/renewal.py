"""Renews a token of an identity provider with its refresh token, before the token ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dgpu.client.credentials import Login, SignIn, changing, replace_login, stored_login
from dgpu.client.errors import NotPermitted, ProviderAway

if TYPE_CHECKING:
    from dgpu.client.server import Server

_MARGIN_S = 30.0  # a token is renewed this long before it ends
_SIGN_IN_AGAIN = "Sign in again: dgpu login --oidc"


def is_ending(until_s: float) -> bool:
    """`until_s` 0: the token is not renewed here."""
    return bool(until_s) and time.time() >= until_s - _MARGIN_S


def token_of(server: Server) -> str:
    """The token to send now. May ask the identity provider. Raises NotPermitted and ProviderAway."""
    return renewed_token(server.url) if is_ending(server.until_s) else server.token


def sign_in_of(told: dict[str, Any], token_url: str, client_id: str) -> SignIn | None:
    """From an answer with an id_token. None: the provider gave no refresh token."""
    refresh_token = told.get("refresh_token")
    if not isinstance(refresh_token, str) or not refresh_token:
        return None
    return SignIn(token_url, client_id, refresh_token, _until_s(told["id_token"]))


def renewed_token(url: str) -> str:
    try:
        return _stored_or_renewed(url)
    except OSError as error:  # not a lost connection to the scheduler
        raise NotPermitted(f"The sign-in cannot be renewed: {error.filename}: {error.strerror}.") from None


def _stored_or_renewed(url: str) -> str:
    with changing():
        login = stored_login(url)
        if login.sign_in is None or not is_ending(login.sign_in.until_s):
            return login.token  # another process renewed it, or a new login replaced it
        renewed = _renew(login, login.sign_in)
        replace_login(login, renewed)
        return renewed.token


def _renew(login: Login, sign_in: SignIn) -> Login:
    from dgpu.client.identity_provider import ProviderError, ask_provider, claims_of

    form = {
        "grant_type": "refresh_token",
        "refresh_token": sign_in.refresh_token,
        "client_id": sign_in.client_id,
    }
    try:
        told = ask_provider(sign_in.token_url, form)
    except ProviderError as error:
        if error.error == "invalid_grant":
            replace_login(login, Login(login.token))
            raise NotPermitted(f"The sign-in has ended: {error}. {_SIGN_IN_AGAIN}") from None
        if error.error:
            raise NotPermitted(f"The sign-in cannot be renewed: {error}. {_SIGN_IN_AGAIN}") from None
        if time.time() < sign_in.until_s:
            return login
        raise ProviderAway(f"The sign-in cannot be renewed: {error}.") from None
    token = told.get("id_token")
    if not isinstance(token, str) or not _is_same_account(claims_of(login.token), claims_of(token)):
        replace_login(login, Login(login.token))
        reason = f"{sign_in.token_url} answered without an id_token of the same account"
        raise NotPermitted(f"The sign-in cannot be renewed: {reason}. {_SIGN_IN_AGAIN}")
    # A provider that replaces the refresh token refuses the former one from now on.
    told.setdefault("refresh_token", sign_in.refresh_token)
    return Login(token, sign_in_of(told, sign_in.token_url, sign_in.client_id))


def _is_same_account(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return all(before.get(name) == after.get(name) for name in ("iss", "sub"))


def _until_s(token: str) -> float:
    """By this machine's clock, which may differ from that of the provider."""
    from dgpu.client.identity_provider import claims_of

    claims, now_s = claims_of(token), time.time()
    end_s, begin_s = claims.get("exp"), claims.get("iat", now_s)
    if not isinstance(end_s, int | float) or not isinstance(begin_s, int | float):
        return now_s
    return now_s + end_s - begin_s
