"""Targets of messages. The address of a target is secret: the displayed form leaves out every part that could be a
secret.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote, urlsplit

import msgspec

_HIDDEN = "…"
_PARTS = re.compile(r"[/:@?&=;,+#\s]+")
_URL = re.compile(r"[A-Za-z][\w+.-]*://\S*")
_LEAST_SECRET = 3
_MAX_DETAIL = 300


class Target(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["webhook", "apprise"]
    url: str
    secret: str = ""  # of a webhook: signs the body
    public_only: bool = False  # of a webhook: refused if its host has an address that is not public

    def __repr__(self) -> str:  # also used in tracebacks and logs
        return f"Target({self.name!r}, {self.address!r})"

    __str__ = __repr__

    @property
    def address(self) -> str:
        """Scheme and host of a webhook; only the scheme of other targets, because their host may be a token."""
        scheme, _, rest = self.url.partition("://")
        if not rest:
            return _HIDDEN
        if self.kind != "webhook":
            return f"{scheme}://{_HIDDEN}"
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        more = f"/{_HIDDEN}" if parts.path.strip("/") or parts.query else ""
        return f"{scheme}://{parts.hostname or ''}{port}{more}"

    def without_secrets(self, text: str) -> str:
        """Makes the error text of a library safe for a log: one line, with nothing of the address beyond the displayed
        part.
        """
        for word in sorted(self._secret_words(), key=len, reverse=True):
            text = text.replace(word, _HIDDEN)
        text = _URL.sub(_HIDDEN, text)  # also a URL that a library shows with half of its secrets
        line = " ".join(text.split())
        return line if len(line) <= _MAX_DETAIL else line[: _MAX_DETAIL - 1] + _HIDDEN

    def _secret_words(self) -> set[str]:
        shown = {word for word in _PARTS.split(self.address) if word}
        written = {self.url, self.secret, *_PARTS.split(self.url)}
        words = written | {unquote(word) for word in written}
        return {word for word in words if len(word) >= _LEAST_SECRET and word not in shown and word != "://"}


def webhook_refusal(url: str) -> str | None:
    """Why this cannot be a webhook. The reason does not repeat the address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "expected a URL like https://host/path, got one that cannot be read"
    if parts.scheme not in {"http", "https"}:
        return "expected a URL that begins with http:// or https://"
    if not parts.hostname or port == 0 or any(sign.isspace() or not sign.isprintable() for sign in url):
        return "expected a URL like https://host/path, without spaces"
    return None
