"""Small files of the data directory that only the scheduler's user may read."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from dgpu.journal.durable import sync_folder

_log = structlog.get_logger("dgpu.access")


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


def read_numbers(path: Path) -> dict[str, int]:
    """A table that may be lost: a missing or damaged file is an empty one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("private_file_not_read", file=str(path), error=str(error))
        return {}
