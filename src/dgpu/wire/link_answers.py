"""The answer to a request for a link to a port of a task."""

from __future__ import annotations

import msgspec


class PortLink(msgspec.Struct, frozen=True, kw_only=True):
    """`url` works once, for the user that asked for it. After it, the browser has a cookie of this host."""

    url: str
    address: str  # without the code: for bookmarks and for programs with a token
    expires_in_seconds: int
