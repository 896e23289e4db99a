"""The token of the scheduler's own user, in a file of its data directory."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

_TOKEN_BYTES = 32


def load_token(path: Path) -> str:
    """The token of this data directory, created at the first start, readable only by its owner."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        token = _stored_token(path)
        if len(token) >= _TOKEN_BYTES:
            return token
        # A crash during the write: no client can have this token.
        path.unlink()
        return load_token(path)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _stored_token(path: Path) -> str:
    """Raises OSError for a token that no client can send: a header takes only printable ASCII."""
    token = path.read_bytes().strip()
    for offset, byte in enumerate(token):
        if not 0x21 <= byte <= 0x7E:
            raise OSError(
                errno.EILSEQ,
                f"the token has byte 0x{byte:02x} at offset {offset}, expected printable ASCII without spaces. "
                "Delete the file: the next start creates a new token",
                str(path),
            )
    return token.decode("ascii")
