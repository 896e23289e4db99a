"""Requests of this program to an identity provider. Standard library only, so that the command line starts fast."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode, urlsplit

from dgpu.wire.address import is_loopback

_ANSWER_SECONDS = 20.0
_MAX_BYTES = 256 << 10
_REFUSALS = frozenset({400, 401, 403})


class ProviderError(Exception):
    """`error`: the code of a refusal, such as invalid_grant; empty: the provider has a problem, or does not answer.

    Texts of the provider are cut and printable.
    """

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask_provider(url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
    """Raises ProviderError."""
    handlers: list[Any] = [_NoRedirect()]
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    data = None if form is None else urlencode(form).encode()
    try:
        with urllib.request.build_opener(*handlers).open(url, data, _ANSWER_SECONDS) as answer:
            told = json.loads(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        code = _code(error)
        is_refusal = error.code in _REFUSALS
        raise ProviderError(
            f"{url} answered {error.code}{code and f': {code}'}", code if is_refusal else ""
        ) from None
    except (OSError, ValueError) as error:
        raise ProviderError(f"{url} cannot be asked: {getattr(error, 'reason', error)}") from None
    return told if isinstance(told, dict) else {}


def claims_of(token: str) -> dict[str, Any]:
    """Not verified: the scheduler does that."""
    try:
        part = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _code(error: urllib.error.HTTPError) -> str:
    try:
        told = str(json.loads(error.read(_MAX_BYTES))["error"])[:200]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "".join(character if character.isprintable() else "?" for character in told)
