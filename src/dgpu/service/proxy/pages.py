"""Answers of the proxy itself. Browsers get a small page, programs a problem as from the API."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import msgspec

from dgpu.wire.answers import PROBLEM_JSON, Problem

_PAGE = """<!doctype html><meta charset=utf-8><meta name=viewport content="width=device-width"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem}}
code{{opacity:.6}}</style><h1>{title}</h1><p>{detail}</p><p><code>dgpu · {code}</code></p>"""
_SAFETY = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]


async def send_problem(
    send: Any, problem: Problem, headers: Mapping[bytes, bytes], *, is_head: bool = False
) -> None:
    if b"text/html" in headers.get(b"accept", b""):
        kind = b"text/html; charset=utf-8"
        texts = {"title": problem.title, "detail": problem.detail, "code": problem.code}
        body = _PAGE.format(**{name: html.escape(text) for name, text in texts.items()}).encode()
    else:
        kind, body = PROBLEM_JSON.encode(), msgspec.json.encode(problem)
    told = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *_SAFETY]
    if problem.status == 503:
        told.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": problem.status, "headers": told})
    await send({"type": "http.response.body", "body": b"" if is_head else body})


async def send_redirect(send: Any, path: str, cookie: bytes) -> None:
    told = [
        (b"location", path.encode("latin-1", "replace")),
        (b"set-cookie", cookie),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": [*told, *_SAFETY]})
    await send({"type": "http.response.body", "body": b""})
