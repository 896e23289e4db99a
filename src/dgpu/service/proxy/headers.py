"""Headers that pass the proxy. Credentials of dgpu never reach a program of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dgpu.service.proxy.entry import TOKEN_HEADER, sets_own_cookie, without_own_cookies

Headers = list[tuple[bytes, bytes]]

_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_UP: Final = _HOP | {TOKEN_HEADER, b"expect", b"forwarded", b"content-length"}
# These would change other hosts or later connections of the browser.
_NOT_DOWN: Final = _HOP | {b"strict-transport-security", b"alt-svc"}


def request_head(
    method: str,
    target: bytes,
    headers: Headers,
    *,
    is_secret: Callable[[bytes], bool],
    scheme: str,
    address: str,
    switches_to: bytes = b"",
) -> tuple[bytes, bool]:
    """The head of the request to the program, and whether its body is sent in chunks."""
    named = _named(value for name, value in headers if name == b"connection")
    length = next((value for name, value in headers if name == b"content-length"), None)
    is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
    lines = [method.encode() + b" " + target + b" HTTP/1.1"]
    host = b""
    for name, value in headers:
        if name in _NOT_UP or name in named or name.startswith(b"x-forwarded-"):
            continue
        if name == b"host":
            host = value
        elif name == b"cookie":
            value = without_own_cookies(value)  # noqa: PLW2901 - the value that goes on
            if not value:
                continue
        elif name == b"authorization" and is_secret(value):
            continue
        lines.append(name + b": " + value)
    lines += [
        b"x-forwarded-for: " + address.encode(),
        b"x-forwarded-proto: " + scheme.encode(),
        b"x-forwarded-host: " + host,
    ]
    if switches_to:
        lines += [b"connection: Upgrade", b"upgrade: " + switches_to]
    elif is_chunked:
        lines.append(b"transfer-encoding: chunked")
    elif length is not None:
        lines.append(b"content-length: " + length)
    return b"\r\n".join([*lines, b"", b""]), is_chunked


def answer_headers(headers: Headers) -> Headers:
    """Of the program's answer, for the client."""
    named = _named(value for name, value in headers if name.lower() == b"connection")
    told: Headers = []
    for given, value in headers:
        name = given.lower()
        if name in _NOT_DOWN or name in named:
            continue
        if name == b"set-cookie":
            if sets_own_cookie(value):
                continue
            value = _of_one_host(value)  # noqa: PLW2901 - the value that goes on
        told.append((name, value))
    return told


def switch_head(status: int, headers: Headers) -> bytes:
    lines = [b"HTTP/1.1 %d Switching Protocols" % status]
    upgrade = next((value for name, value in headers if name.lower() == b"upgrade"), b"websocket")
    lines += [name + b": " + value for name, value in answer_headers(headers)]
    lines += [b"connection: Upgrade", b"upgrade: " + upgrade]
    return b"\r\n".join([*lines, b"", b""])


def _of_one_host(cookie: bytes) -> bytes:
    """Without Domain: a cookie of one task must not be sent to others. The first part is the cookie itself."""
    pair, *attributes = cookie.split(b";")
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([pair, *kept])


def _named(values: Iterable[bytes]) -> frozenset[bytes]:
    """Further headers that belong to one connection only."""
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))
