"""The part of OpenID Connect that the door needs without a provider. Importing it is cheap."""

from __future__ import annotations

from typing import Final

import msgspec

ATTEMPT_SECONDS: Final = 600
MAX_CODE_CHARS: Final = 4_096


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """The content of the browser's cookie while its user is at the provider."""

    state: str
    nonce: str
    verifier: str
    until_s: int


def looks_like_jwt(secret: bytes) -> bool:
    return secret.startswith(b"eyJ") and secret.count(b".") == 2
