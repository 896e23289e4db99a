"""The description of the calls that browsers make first; the frame does not see them."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.wire.board_answers import BoardDelta, BoardSnapshot, GpuColumns

_JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"
_SNAPSHOT = {"$ref": _REFERENCE.format(name=BoardSnapshot.__name__)}


def browser_schemas() -> dict[str, Any]:
    """The types of the board, by name."""
    _, named = msgspec.json.schema_components((BoardSnapshot, BoardDelta), ref_template=_REFERENCE)
    return named


def browser_calls() -> dict[str, Any]:
    return {**_board_calls(), **_session_calls(), **_ways_in()}


def _board_calls() -> dict[str, Any]:
    return {
        "/api/v1/board": {
            "get": {
                "summary": "The cluster at a glance",
                "description": "Everything that a dashboard shows first, in columns: at most a second old, the same "
                f"bytes for all clients. Columns of `gpus`: {' '.join(GpuColumns.__struct_fields__)}. "
                "`status`, `health` and `model` are indexes into the lists `statuses`, `healths` and `models`; task "
                "numbers are bare; `history` contains the last ten minutes.",
                "responses": {"200": _answer("The snapshot.", _SNAPSHOT, _JSON)},
            }
        },
        "/api/v1/board/stream": {
            "get": {
                "summary": "Changes of the cluster",
                "description": "Server-sent events. `snapshot`: as /api/v1/board; replaces all earlier data. `delta`: "
                "changes since the event before, at most once a second, at least every five; per column the rows `i` "
                "and their values `v` (BoardDelta). `resync`: the client was too slow, a snapshot follows. Each "
                "connection begins with a snapshot.",
                "responses": {"200": _answer("The stream.", {"type": "string"}, "text/event-stream")},
            }
        },
    }


def _session_calls() -> dict[str, Any]:
    return {
        "/api/v1/session": {
            "get": {
                "summary": "The reason for admission",
                "description": "open (no token needed), user (the scheduler's own), token or cookie.",
                "responses": {"200": _answer("The caller's access.", _fields(access="string"), _JSON)},
            },
            "post": {
                "summary": "Sign a browser in",
                "description": "Takes exactly one of: the `code` that `dgpu dashboard` printed, once; an API `token`; "
                "`oidc` with the `code` and `state` of the identity provider. The answer sets a cookie. The session "
                "has the rights of its principal and ends with its token.",
                "requestBody": {
                    "required": True,
                    "content": {_JSON: {"schema": _sign_in_fields()}},
                },
                "responses": {
                    "204": {"description": "The cookie is set."},
                    "401": {"description": "The token is revoked or has expired."},
                    "403": {"description": "The code or token is wrong, or was used."},
                },
            },
            "delete": {
                "summary": "End this browser's session",
                "description": "The session ends, and the browser forgets its cookie.",
                "responses": {"204": {"description": "Forgotten."}},
            },
        },
    }


def _ways_in() -> dict[str, Any]:
    """The calls before a session, and those that lead to one."""
    return {
        "/api/v1/session/methods": {
            "get": {
                "summary": "How a browser can sign in",
                "description": "For the login page; needs no identity. A token is always possible. `oidc` is the name "
                "of the identity provider, or null.",
                "responses": {
                    "200": _answer("The methods.", _fields(oidc=("string", "null")), _JSON),
                },
            }
        },
        "/api/v1/session/oidc": {
            "post": {
                "summary": "Begin to sign in with the identity provider",
                "description": "Body: {}. The browser goes to the `url` of the answer, and comes back to /login with a "
                "code and a state, which it sends to POST /api/v1/session.",
                "requestBody": {"content": {_JSON: {"schema": {"type": "object"}}}},
                "responses": {
                    "200": _answer("The address.", _fields(url="string"), _JSON),
                    "404": {"description": "No identity provider is configured."},
                    "409": {
                        "description": "The provider sends browsers back to another address of this scheduler."
                    },
                    "503": {"description": "The identity provider does not answer."},
                },
            }
        },
        "/api/v1/session/code": {
            "post": {
                "summary": "Get a code for a browser",
                "description": "Valid once, for five minutes. The session will have your own rights. "
                "Body: {}.",
                "requestBody": {"content": {_JSON: {"schema": {"type": "object"}}}},
                "responses": {
                    "201": _answer(
                        "The code.",
                        _fields(code="string", url_path="string", expires_in_seconds="integer"),
                        _JSON,
                    )
                },
            }
        },
    }


def _sign_in_fields() -> dict[str, Any]:
    fields = _fields(**dict.fromkeys(("code", "token"), "string"))
    fields["properties"]["oidc"] = _fields(code="string", state="string")
    return fields


def _fields(**types: str | tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}


def _answer(text: str, schema: Any, media_type: str) -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": schema}}}
