"""How people sign in with an account of another service (OpenID Connect)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dgpu.wire.roles import Role

# Only signatures with public keys. A token that is "signed" with the public key as a secret, or not at all, has another
# algorithm and is refused.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
    *("EdDSA", "Ed25519"),
)


class OidcOptions(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str
    redirect_url: str  # the address of the login page
    client_secret: str = ""  # empty: a public client
    audience: str = ""  # of tokens on the API; empty: the client id
    cli_client_id: str = ""  # of the command line, a public client; empty: it cannot sign in
    name: str = ""  # for the button; empty: the issuer's host
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    user_claim: str = "preferred_username"
    tenants_claim: str = "groups"
    tenants: Mapping[str, str] = {}  # of a claim's value; empty: values are names of tenants
    role_claim: str = "groups"
    roles: Mapping[str, Role] = {}  # of a claim's value
    default_role: Role | None = Role.USER  # None: accounts without a role of the map are refused
    clock_skew_s: int = 60
    session_s: int = 8 * 3_600
    refresh_s: float = 30.0  # between two requests for keys
    timeout_s: float = 10.0
    ca_file: str = ""  # empty: the authorities of the machine

    def __repr__(self) -> str:
        return f"OidcOptions(issuer={self.issuer!r})"  # a secret must not reach a log through repr
