"""Values that a function returns, encoded; arguments, decoded."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Any, Final

import msgspec

from dgpu.worker.frames import MAX_INLINE_BYTES

MAX_RESULT_BYTES: Final = 1 << 30


class CannotEncodeError(TypeError):
    """The text names the type, and says what to return instead."""


def encode_value(value: Any) -> bytes:
    """Msgpack. Raises CannotEncodeError."""
    try:
        body = _encoder.encode(value)
    except RecursionError as error:
        raise CannotEncodeError("the returned value contains itself, or is nested too deeply") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise CannotEncodeError(
            f"the function returned {_kind(value)}, which cannot be sent: {error}"
        ) from error
    if len(body) > MAX_RESULT_BYTES:
        raise CannotEncodeError(
            f"the result has {len(body):,} bytes, at most {MAX_RESULT_BYTES:,} are kept: "
            "write it to a file and return the path"
        )
    return body


def decode_arguments(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    if not body:
        return [], {}
    try:
        args, kwargs = msgspec.msgpack.decode(body, type=tuple[list[Any], dict[str, Any]])
    except msgspec.DecodeError as error:
        raise TypeError(f"the arguments are not msgpack of [args, kwargs]: {error}") from error
    return args, kwargs


class Files:
    """Large arguments and results, beside the socket: a directory that only this user can enter."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory

    def take(self, name: str) -> bytes:
        """Reads a file of the agent and deletes it."""
        path = self._directory / pathlib.PurePath(name).name
        body = path.read_bytes()
        path.unlink(missing_ok=True)
        return body

    def leave(self, lease: int, body: bytes) -> tuple[str, str]:
        """Its name and SHA-256. The agent deletes it once it is stored."""
        name = f"result-{lease}"
        fd = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(body)
        except OSError:
            self.drop(name)  # half a file must not keep the disk full
            raise
        return name, hashlib.sha256(body).hexdigest()

    def drop(self, name: str) -> None:
        """A result that is not sent after all."""
        (self._directory / name).unlink(missing_ok=True)


def is_large(body: bytes) -> bool:
    return len(body) > MAX_INLINE_BYTES


def _plain(value: Any) -> Any:
    """Scalars of NumPy and PyTorch have an equal number of Python."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    hint = "; return value.tolist()" if callable(getattr(value, "tolist", None)) else ""
    if hasattr(value, "__next__"):
        hint = "; return list(...)"
    raise TypeError(f"{_kind(value)} is neither msgpack nor JSON{hint}")


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
