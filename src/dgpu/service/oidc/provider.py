"""Requests to the identity provider. Answers are bounded, redirects are not followed, and no text contains a secret."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, OKPKey, RSAKey

from dgpu.service.oidc.options import OidcOptions
from dgpu.wire.address import is_safe_url

if TYPE_CHECKING:
    import httpx

MAX_BYTES: Final = 256 << 10
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2_048
_DISCOVERY: Final = "/.well-known/openid-configuration"

T = TypeVar("T")


class ProviderAway(Exception):  # noqa: N818 - the name states the failure
    """The provider does not answer, or its answer makes no sense."""


class CodeRefused(Exception):  # noqa: N818 - the same
    """The provider did not accept the code of a sign-in."""


class Metadata(msgspec.Struct, frozen=True):
    """The part of the discovery document that is used."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Keys(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str = ""


class Provider:
    def __init__(self, options: OidcOptions) -> None:
        self._options = options
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def metadata(self) -> Metadata:
        url = self._options.issuer.rstrip("/") + _DISCOVERY
        found = _decoded(await self._answer("GET", url), Metadata, url)
        if found.issuer != self._options.issuer:
            raise ProviderAway(f"{url} names the issuer {found.issuer[:200]!r}, not {self._options.issuer!r}")
        for address in (found.jwks_uri, found.authorization_endpoint, found.token_endpoint):
            if address and not is_safe_url(address):
                raise ProviderAway(f"{url} has an address that is not https: {address[:200]!r}")
        return found

    async def keys(self, metadata: Metadata) -> dict[str, Key]:
        """The public keys for signatures, by id. Keys that this version does not know are left out."""
        found = _decoded(await self._answer("GET", metadata.jwks_uri), _Keys, metadata.jwks_uri)
        keys: dict[str, Key] = {}
        for raw in found.keys[:MAX_KEYS]:
            key = _key_of(raw)
            if key is not None:
                keys[str(raw.get("kid", ""))] = key
        if not keys:
            raise ProviderAway(f"{metadata.jwks_uri} has no key for signatures")
        return keys

    async def id_token(self, metadata: Metadata, code: str, verifier: str) -> str:
        """Exchanges the code of a sign-in. Raises CodeRefused or ProviderAway."""
        options = self._options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": options.redirect_url,
            "client_id": options.client_id,
            "code_verifier": verifier,
        }
        basic = None
        if options.client_secret:
            if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
                basic = (options.client_id, options.client_secret)
            else:
                form["client_secret"] = options.client_secret
        url = metadata.token_endpoint
        told = _decoded(await self._answer("POST", url, form=form, basic=basic), _Tokens, url)
        if not told.id_token:
            raise ProviderAway(f"{url} answered without an id_token")
        return told.id_token

    async def _answer(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        basic: tuple[str, str] | None = None,
    ) -> bytes:
        import httpx

        try:
            async with asyncio.timeout(self._options.timeout_s):
                client = await self._client()
                sending = client.stream(method, url, data=form, auth=basic or httpx.USE_CLIENT_DEFAULT)
                async with sending as answer:
                    content = b""
                    async for piece in answer.aiter_bytes():
                        content += piece
                        if len(content) > MAX_BYTES:
                            raise ProviderAway(f"{url} answered with more than {MAX_BYTES} bytes")
        except TimeoutError:
            raise ProviderAway(f"{url} did not answer within {self._options.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise ProviderAway(f"{url} cannot be reached: {type(error).__name__}") from None
        if form is not None and 400 <= answer.status_code < 500:
            raise CodeRefused(f"{url} answered {answer.status_code}")
        if answer.status_code != 200:
            raise ProviderAway(f"{url} answered {answer.status_code}")
        return content

    async def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            # Reading the authorities takes tens of milliseconds: not in the loop.
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=self._options.ca_file or None)
            # No proxy and no password from the environment: only the configuration decides.
            self._http = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                verify=trust,
                timeout=self._options.timeout_s,
                limits=httpx.Limits(max_connections=10),
                headers={"accept": "application/json", "user-agent": "dgpu"},
            )
        return self._http


def _decoded(content: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ProviderAway(f"{url} did not answer with the expected JSON") from None


def _key_of(raw: dict[str, Any]) -> Key | None:
    if raw.get("use", "sig") != "sig" or raw.get("kty") not in {"RSA", "EC", "OKP"}:
        return (
            None  # also "oct": a secret must never be published, and a public key must never be used as one
        )
    try:
        key = JWKRegistry.import_key(raw)
        if not isinstance(key, RSAKey | ECKey | OKPKey) or key.is_private:
            return None
        if isinstance(key, RSAKey) and key.public_key.key_size < MIN_RSA_BITS:
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key
