"""Checks against web pages that send requests in the name of a user: Host, Origin, and the kind of the body."""

from __future__ import annotations

import ipaddress

from dgpu.wire.answers import Problem

BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
MAX_GOOD_HOSTS = 1_024


class Hosts:
    """Names under which this scheduler is reached. Addresses are always good."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = {_host_name(name) for name in names} | {"localhost"}
        self._good: set[bytes] = set()  # header values that passed the check, as sent

    def wrong(self, headers: dict[bytes, bytes]) -> Problem | None:
        """A foreign name means that DNS directed a page to this address. An IP address cannot be misused that way."""
        given = headers.get(b"host", b"")
        if given in self._good:
            return None
        host = _host_name(given.decode("latin-1"))
        if host in self._names or _is_address(host):
            if len(self._good) < MAX_GOOD_HOSTS:
                self._good.add(given)
            return None
        detail = f"This scheduler is not named {host[:100]!r}. Use its address or localhost."
        return problem(421, "wrong_host", "Wrong host", detail)


def repeated_host(headers: list[tuple[bytes, bytes]]) -> Problem | None:
    """RFC 9112: a proxy may route by one Host while this server checks another, so a second one is an error."""
    if sum(name == b"host" for name, _ in headers) < 2:
        return None
    detail = "The request has more than one Host header, expected exactly one."
    return problem(400, "repeated_host", "Repeated Host header", detail)


def wrong_origin(headers: dict[bytes, bytes]) -> Problem | None:
    """A browser names the page that sends a write. Only pages of this server may write."""
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"none")
    if origin is None and site in {b"none", b"same-origin"}:
        return None
    host = headers.get(b"host", b"")
    if origin in {b"http://" + host, b"https://" + host} and site in {b"none", b"same-origin"}:
        return None
    return problem(
        403, "foreign_origin", "Foreign origin", "Web pages of another origin may not change anything here."
    )


def wrong_content(method: str, headers: dict[bytes, bytes]) -> Problem | None:
    """Any web page can send a form without asking first, but a form is never JSON.

    Checked after the call is known: a method that the call does not take must get 405, not a request for JSON.
    """
    if method not in BODY_METHODS:
        return None
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in {b"identity", b""}:
        given = encoding[:40].decode("latin-1")
        detail = f"Content-Encoding is {given!r}, expected none or identity: send the body uncompressed."
        return problem(415, "unsupported_encoding", "Unsupported encoding", detail)
    kind, _, parameters = headers.get(b"content-type", b"").partition(b";")
    charset = parameters.strip().lower()
    if kind.strip().lower() == b"application/json" and charset in {b"", b"charset=utf-8", b'charset="utf-8"'}:
        return None
    return problem(
        415,
        "json_needed",
        "JSON is needed",
        "Send the body as UTF-8 JSON with Content-Type: application/json.",
    )


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0][1:]
    return header.partition(":")[0].lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def problem(status: int, code: str, title: str, detail: str) -> Problem:
    return Problem(status=status, code=code, title=title, detail=detail)
