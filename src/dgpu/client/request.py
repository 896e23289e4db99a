"""A request as a value: its content, and how to read the answer. Both clients carry these out."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from dgpu.client.errors import BadRequest, DgpuError, error_of
from dgpu.wire import answers

T = TypeVar("T")
U = TypeVar("U")

NOTHING = b"{}"


class Request(msgspec.Struct, Generic[T], frozen=True):
    """A submit carries its own key; most other requests state the wanted result, not a change to add. These may be
    sent again after a broken connection, also to another scheduler.
    """

    method: str
    path: str
    answer: type[T]
    body: bytes | None = None
    headers: dict[str, str] = {}
    pick: Callable[[Any], Any] | None = None
    # False: a second one would do the thing twice. It is sent again only if the first one was not carried out.
    is_repeatable: bool = True
    file: Path | None = None  # sent as the body
    is_raw: bool = False  # the answer is the bytes themselves

    @property
    def is_read(self) -> bool:
        """Every scheduler answers it. Any other request is for the master."""
        return self.method == "GET"

    def picking(self, pick: Callable[[T], U]) -> Request[U]:
        """The call returns this part of the answer. `answer` stays the type that the server sends."""
        return cast("Request[U]", msgspec.structs.replace(self, pick=pick))


def api_path(*parts: str | int, **query: object) -> str:
    """Parts are quoted, so that an id cannot change the path. A query value of None is left out."""
    path = "/".join(("/api/v1", *(quote(str(part), safe="") for part in parts)))
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def new_key(chosen: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": chosen or secrets.token_hex(16)}


def given(**values: object) -> bytes:
    """A body with the values that are not None."""
    return encode({name: value for name, value in values.items() if value is not None})


def encode(value: object) -> bytes:
    """JSON has neither NaN nor infinity. They would be sent as null, which removes a limit."""
    body = msgspec.json.encode(value)
    if b"null" in body:
        _check_numbers(value, "")
    return body


def _check_numbers(value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path}: Expected a number, got {value}.")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_numbers(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_numbers(item, f"{path}[{number}]")


def headers_of(request: Request[Any], token: str) -> dict[str, str]:
    headers = {"Accept": "application/json", **request.headers, **bearer(token)}
    if request.method != "GET":
        headers.setdefault("Content-Type", "application/json")
    return headers


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def read_answer(request: Request[T], status: int, body: bytes) -> T:
    """The typed answer; a problem is raised."""
    if not 200 <= status < 300:
        raise failure(status, body)
    if request.is_raw:
        return cast("T", body)
    try:
        found = msgspec.json.decode(body, type=request.answer)
    except msgspec.MsgspecError as error:
        problem = _unreadable(status, f"Unexpected answer to {request.method} {request.path}: {error}.")
        raise error_of(problem) from None
    return found if request.pick is None else cast("T", request.pick(found))


def failure(status: int, body: bytes) -> DgpuError:
    try:
        return error_of(msgspec.json.decode(body, type=answers.Problem))
    except msgspec.MsgspecError:
        return error_of(_unreadable(status, f"The server answered {status} without a reason."))


def _unreadable(status: int, detail: str) -> answers.Problem:
    return answers.Problem(
        title="Unreadable answer",
        status=status if status >= 400 else 502,
        detail=detail,
        code="unreadable_answer",
    )
