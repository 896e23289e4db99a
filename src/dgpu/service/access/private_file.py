"""Small files of the data directory that only the scheduler's user may read."""

from __future__ import annotations

import os
from pathlib import Path

from dgpu.journal.durable import sync_folder


def write_private(path: Path, content: bytes) -> None:
    """Durable; complete or not at all; with mode 0600 from the first byte on."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_folder(path.parent)
