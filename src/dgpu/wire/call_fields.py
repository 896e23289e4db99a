"""The fields of a function call."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

import msgspec

from dgpu.core.model.app import DEFAULT_MAX_WORKERS, MAX_WORKERS
from dgpu.wire.fields import MAX_PATH_CHARS, Unacceptable, whole
from dgpu.wire.uploads import DIGEST

MAX_INLINE_BYTES: Final = 256 << 10  # of arguments or of a result; more travels by reference
MAX_ENTRYPOINT_CHARS: Final = 256
MAX_DIRECTORIES: Final = 32  # of python_path
MAX_PRELOADED: Final = 16
MAX_PRELOAD_CHARS: Final = 255
DEFAULT_TIMEOUT_MS: Final = 3_600_000
DEFAULT_PYTHON: Final = "python3"

# Script names have dashes (my-script.py), and methods have dots (Class.method).
_ENTRYPOINT: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
)
_TOO_LARGE: Final = (
    f"at most {MAX_INLINE_BYTES:,} bytes; send more with PUT /api/v1/uploads and give args_ref"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[Any], dict[str, Any]]).decode


def entrypoint(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_ENTRYPOINT_CHARS or not _ENTRYPOINT.fullmatch(value):
        raise Unacceptable("a function as package.module:function")
    return value


def args(value: Any) -> list[Any]:
    if type(value) is not list:
        raise Unacceptable("a list: the positional arguments", secret=True)
    return value


def kwargs(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Unacceptable("an object: the arguments by name", secret=True)
    return value


def args_msgpack(value: Any) -> bytes:
    """Base64 of the msgpack of [args, kwargs]."""
    wrong = Unacceptable(
        "base64 of the msgpack of [args, kwargs]: a list and a map with text keys", secret=True
    )
    if type(value) is not str:
        raise wrong
    try:
        packed = base64.b64decode(value, validate=True)
        _decode(packed)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise wrong from None
    if len(packed) > MAX_INLINE_BYTES:
        raise Unacceptable(_TOO_LARGE, secret=True)
    return packed


def packed(positional: list[Any], named: dict[str, Any]) -> bytes:
    """Arguments given as JSON, as the worker gets them. Raises Unacceptable."""
    if not positional and not named:
        return b""
    try:
        found = _encode((positional, named))
    except (OverflowError, ValueError, TypeError):
        raise Unacceptable("values that msgpack can hold: integers of at most 64 bits", secret=True) from None
    if len(found) > MAX_INLINE_BYTES:
        raise Unacceptable(_TOO_LARGE, secret=True)
    return found


def args_ref(value: Any) -> str:
    if type(value) is not str or not DIGEST.fullmatch(value):
        raise Unacceptable("the SHA-256 of uploaded arguments: 64 lowercase hexadecimal digits")
    return value


def python(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_PATH_CHARS or not value.isprintable():
        raise Unacceptable("the path or name of a Python interpreter")
    if "/" in value and not value.startswith("/"):
        raise Unacceptable("an absolute path, or a name without /")
    return value


def python_path(value: Any) -> tuple[str, ...]:
    if type(value) is not list or len(value) > MAX_DIRECTORIES:
        raise Unacceptable(f"a list of at most {MAX_DIRECTORIES} directories")
    for number, each in enumerate(value):
        if type(each) is not str or not 0 < len(each) <= MAX_PATH_CHARS or not each.isprintable():
            raise Unacceptable("a directory", at=f"[{number}]", value=each)
    return tuple(value)


def preload(value: Any) -> tuple[str, ...]:
    if type(value) is not list or len(value) > MAX_PRELOADED:
        raise Unacceptable(f"a list of at most {MAX_PRELOADED} models or modules")
    for number, each in enumerate(value):
        if type(each) is not str or not 0 < len(each.encode()) <= MAX_PRELOAD_CHARS or not each.isprintable():
            raise Unacceptable("the name of a model, or module:loader", at=f"[{number}]", value=each)
    return tuple(value)


max_workers = whole(1, MAX_WORKERS)

_LIST_OF_TEXT: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_ABOUT_ENTRYPOINT: Final = (
    "A function, as package.module:function. It runs in a warm worker: a process that keeps its GPU and its loaded "
    "models between calls. In place of `command`. The GPU fields are those of the worker; calls with equal code, "
    "environment, GPU fields, pool and priority share workers."
)
# Name, internal field, check, description, schema.
CALL_FIELDS: Final = (
    (
        "entrypoint",
        "entrypoint",
        entrypoint,
        _ABOUT_ENTRYPOINT,
        {"type": "string", "maxLength": MAX_ENTRYPOINT_CHARS, "examples": ["job:run"]},
    ),
    (
        "args",
        "call_args",
        args,
        "Positional arguments of the function. With kwargs at most 256 KiB.",
        {"type": "array"},
    ),
    ("kwargs", "call_kwargs", kwargs, "Arguments of the function by name.", {"type": "object"}),
    (
        "args_msgpack",
        "call_msgpack",
        args_msgpack,
        "In place of args and kwargs: base64 of the msgpack of [args, kwargs], at most 256 KiB.",
        {"type": "string", "contentEncoding": "base64"},
    ),
    (
        "args_ref",
        "args_ref",
        args_ref,
        "For large arguments: the SHA-256 of such a msgpack, sent before with PUT /api/v1/uploads/{sha256}.",
        {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    ),
    (
        "python",
        "python",
        python,
        "The interpreter of the worker: a path on the node, or a name. dgpu must be installed for it.",
        {"type": "string", "default": DEFAULT_PYTHON},
    ),
    ("python_path", "python_path", python_path, "Directories put on sys.path of the worker.", _LIST_OF_TEXT),
    (
        "preload",
        "preload",
        preload,
        "Models that each worker loads when it starts: names, or module:loader.",
        _LIST_OF_TEXT,
    ),
    (
        "max_workers",
        "max_workers",
        max_workers,
        "Workers that calls with these fields may have at once.",
        {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS, "default": DEFAULT_MAX_WORKERS},
    ),
)
