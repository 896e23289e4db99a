"""Verifies signed tokens of the provider. Its keys are cached; the number of requests for them is bounded."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from dgpu.service.access.principal import Principal
from dgpu.service.oidc.claims import principal_of, wrong_claims
from dgpu.service.oidc.options import OidcOptions
from dgpu.service.oidc.provider import Metadata, Provider, ProviderAway
from dgpu.wire.answers import Problem

KEYS_SECONDS: Final = 3_600.0  # then the keys are read again, without delay for any request
STALE_SECONDS: Final = 86_400.0  # keys are used this long while the provider is away
RETRY_SECONDS: Final = 5.0  # after a failure
MAX_WAITING: Final = 100  # requests that wait for keys
MAX_JWT_BYTES: Final = 16_384
MAX_VERIFIED: Final = 1_000

_log = structlog.get_logger("dgpu.oidc")


class Facts(NamedTuple):
    """What the provider said last."""

    metadata: Metadata
    keys: dict[str, Key]
    read_at_s: float  # monotonic


class _Header(NamedTuple):
    algorithm: str
    key_id: str


class Verifier:
    def __init__(
        self,
        options: OidcOptions,
        provider: Provider,
        clock: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._options = options
        self._provider = provider
        self._clock = clock
        self._wall_s = wall_s
        self._facts: Facts | None = None
        self._why_away = ""
        self._next_read_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._waiting = 0
        self._verified: OrderedDict[bytes, Principal] = OrderedDict()  # by the hash of a token of the API

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def facts(self) -> Facts | None:
        """None: never read, or too long ago."""
        facts = self._facts
        return None if facts is None or self._clock() - facts.read_at_s > STALE_SECONDS else facts

    async def need_facts(self) -> Facts | Problem:
        if self.facts is None:
            await self._read_again()
        return self.facts or self.away()

    async def prepare(self, token: bytes) -> None:
        """Reads the keys if this token cannot be verified without. Many unknown keys are one request in a while."""
        if _hash(token) in self._verified or len(token) > MAX_JWT_BYTES:
            return
        facts, header = self.facts, _header_of(token)
        if header is None or header.algorithm not in self._options.algorithms:
            return
        if facts is None or _key(facts.keys, header.key_id) is None:
            await self._read_again()

    def of_api(self, token: bytes) -> Principal | Problem:
        """A token in a request to the API. Call `prepare` before."""
        digest = _hash(token)
        known = self._verified.get(digest)
        if known is not None and self._wall_s() < known.ends_wall_s:
            self._verified.move_to_end(digest)
            return known
        options = self._options
        expected = [options.audience or options.client_id, *filter(None, [options.cli_client_id])]
        claims = self._checked(token, expected)
        found = claims if isinstance(claims, Problem) else principal_of(self._options, claims)
        if isinstance(found, Principal):
            self._verified[digest] = found
            while len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
        return found

    def of_sign_in(self, token: bytes, nonce: str) -> Principal | Problem:
        claims = self._checked(token, [self._options.client_id], nonce)
        return claims if isinstance(claims, Problem) else principal_of(self._options, claims)

    def _checked(
        self, token: bytes, expected: Sequence[str], nonce: str | None = None
    ) -> Mapping[str, Any] | Problem:
        facts, header = self.facts, _header_of(token)
        if len(token) > MAX_JWT_BYTES or header is None:
            return _wrong("It is not a signed token.")
        if header.algorithm not in self._options.algorithms:
            allowed = ", ".join(self._options.algorithms)
            return _wrong(f"Its algorithm is {header.algorithm[:20]!r}, expected one of {allowed}.")
        if facts is None:
            return self.away()
        key = _key(facts.keys, header.key_id)
        if key is None:
            return _wrong("The issuer does not know the key of its signature.")
        # Unknown fields of the header are ignored, as the standard says; critical ones are refused.
        rules = JWSRegistry(algorithms=[header.algorithm], strict_check_header=False)
        try:
            claims = jwt.decode(token, key, registry=rules).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            return _wrong("Its signature does not fit.")
        wrong = wrong_claims(self._options, claims, expected=expected, now_s=self._wall_s(), nonce=nonce)
        self._read_old_keys(facts)
        return wrong or claims

    def away(self) -> Problem:
        detail = (
            f"The identity provider cannot be asked: {self._why_away or 'too many requests wait for it'}. "
        )
        detail += "API tokens and the scheduler's own user still work."
        return Problem(
            status=503,
            code="oidc_away",
            title="Identity provider not available",
            detail=detail,
            facts={"why": self._why_away},
        )

    def _read_old_keys(self, facts: Facts) -> None:
        if self._clock() - facts.read_at_s > KEYS_SECONDS:
            self._begin_reading()

    async def _read_again(self) -> None:
        reading = self._begin_reading()
        if reading is None or self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            await asyncio.shield(reading)
        finally:
            self._waiting -= 1

    def _begin_reading(self) -> asyncio.Task[None] | None:
        """One request at a time, and none too soon after the last one."""
        if self._reading is not None and not self._reading.done():
            return self._reading
        if self._clock() < self._next_read_s:
            return None
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="oidc-keys")
        return self._reading

    async def _read(self) -> None:
        try:
            metadata = await self._provider.metadata()
            keys = await self._provider.keys(metadata)
        except ProviderAway as away:
            self._why_away = str(away)
            self._next_read_s = self._clock() + min(RETRY_SECONDS, self._options.refresh_s)
            _log.warning("oidc_away", error=self._why_away)
            return
        self._verified.clear()  # a key may have been withdrawn
        self._facts = Facts(metadata, keys, self._clock())
        self._next_read_s = self._clock() + self._options.refresh_s
        _log.info("oidc_keys_read", issuer=metadata.issuer, keys=len(keys))


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _key(keys: Mapping[str, Key], key_id: str) -> Key | None:
    """A token that names no key is accepted only if there is no choice."""
    if not key_id and len(keys) == 1:
        return next(iter(keys.values()))
    return keys.get(key_id) if key_id else None


def _header_of(token: bytes) -> _Header | None:
    head = token.partition(b".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    algorithm, key_id = found.get("alg"), found.get("kid", "")
    if not isinstance(algorithm, str) or not isinstance(key_id, str):
        return None
    return _Header(algorithm, key_id)


def _wrong(detail: str) -> Problem:
    return Problem(
        status=403, code="wrong_token", title="The token is wrong", detail=detail, facts={"why": detail}
    )
