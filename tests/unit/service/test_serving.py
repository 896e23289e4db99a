"""A function of one JSON value as an application."""

from __future__ import annotations

import io
import json
from typing import Any

from dgpu.serving import as_wsgi


def posted(body: bytes, **variables: str) -> tuple[str, Any]:
    told: list[str] = []
    environ = {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(body), **variables}
    answer = as_wsgi(lambda value: {"got": value})(environ, lambda status, _: told.append(status))
    return told[0], json.loads(b"".join(answer))


def test_a_body_without_a_length_is_refused_and_not_taken_for_nothing() -> None:
    assert posted(b'{"x": 4}', CONTENT_LENGTH="8") == ("200 OK", {"got": {"x": 4}})
    assert posted(b"") == ("200 OK", {"got": None})
    status, told = posted(b'8\r\n{"x": 4}\r\n0\r\n\r\n', HTTP_TRANSFER_ENCODING="chunked")
    assert (status, told) == ("411 Length Required", {"error": "send the body with a Content-Length"})
