"""Finds what compile_core.py made from the C files of this package. Standard library only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_SOURCES = Path(__file__).parent


def find_native(source: str) -> str:
    """Its path, by the digest of the present source. Empty: it has not been compiled."""
    file = _SOURCES / source
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
    path = file.parents[1] / "_native" / f"{file.stem}-{digest}"
    return str(path) if os.access(path, os.X_OK) else ""
