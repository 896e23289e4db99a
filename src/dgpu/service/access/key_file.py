"""The key under which the scheduler hashes API tokens. Without it, a copy of the journal proves no guess."""

from __future__ import annotations

import errno
import secrets
from pathlib import Path

from dgpu.service.access.private_file import write_private

KEY_NAME = "token.key"
KEY_BYTES = 32


def load_key(path: Path) -> bytes:
    """Made at the first start, readable by its owner only. Raises OSError for a file that holds no key."""
    if not path.exists():
        write_private(path, f"{secrets.token_bytes(KEY_BYTES).hex()}\n".encode("ascii"))
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
