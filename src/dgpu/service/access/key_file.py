"""Files with keys of the scheduler: readable by their owner only, complete or absent."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Sequence
from pathlib import Path

from dgpu.service.access.private_file import write_private

KEY_NAME = "token.key"
KEY_BYTES = 32

_TOKENS_LOST = "every API token has to be created again"


def load_key(path: Path) -> bytes:
    """The key under which the scheduler hashes API tokens. Without it, a copy of the journal proves no guess.

    Created at the first start. Raises OSError for a file without a key.
    """
    return load_keys(path, most=1, without=_TOKENS_LOST)[0]


def load_keys(path: Path, *, most: int, without: str) -> list[bytes]:
    """One key per line. `without`: the consequence of a lost file, for the error message."""
    if not path.exists():
        write_keys(path, [new_key()])
    path.chmod(0o600)
    try:
        keys = [bytes.fromhex(line) for line in path.read_bytes().decode("ascii").split()]
    except ValueError:
        keys = []
    if not 0 < len(keys) <= most or any(len(key) != KEY_BYTES for key in keys):
        detail = (
            f"expected {2 * KEY_BYTES} hexadecimal digits. Restore the file from a backup, or delete it: the next "
            f"start makes a new key, and {without}"
        )
        raise OSError(errno.EILSEQ, detail, str(path))
    return keys


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    write_private(path, "".join(f"{key.hex()}\n" for key in keys).encode("ascii"))
