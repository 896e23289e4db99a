"""The key under which the scheduler hashes API tokens. Without it, a copy of the journal proves no guess."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

KEY_NAME = "token.key"
KEY_BYTES = 32


def load_key(path: Path) -> bytes:
    """Made at the first start, readable by its owner only. Raises OSError for a file that holds no key."""
    if not path.exists():
        _write_key(path)
    path.chmod(0o600)
    text = path.read_bytes().strip()
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        detail = (
            f"expected {2 * KEY_BYTES} hexadecimal digits. Restore the file from a backup, or delete it: the next "
            "start makes a new key, and every API token has to be created again"
        )
        raise OSError(errno.EILSEQ, detail, str(path))
    return key


def _write_key(path: Path) -> None:
    """Complete or not at all: half a key would lock every token out."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_bytes(KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
