"""Where a worker listens: a socket in a private directory of its run. Standard library only."""

from __future__ import annotations

import hashlib
import os

SOCKET_VARIABLE = "DGPU_WORKER_SOCKET"
SETUP_VARIABLE = "DGPU_WORKER_SETUP"
MAX_PATH_BYTES = 100  # the kernel takes 107
_LONGEST = f"/{2**64 - 1}/s"
_SHORT_PLACE = "/tmp"  # noqa: S108 - each keeper has a directory of its own there, checked before use


def worker_dir_of(directory: str, work_dir: str) -> str:
    """The parent of these directories, for the keeper with this directory. It is beside the directories of tasks, so
    that large arguments and results are on the same disk, unless that path is too long for a socket.
    """
    beside = f"{work_dir}/.workers"
    if len(os.fsencode(beside + _LONGEST)) <= MAX_PATH_BYTES:
        return beside
    name = hashlib.sha256(directory.encode()).hexdigest()[:16]
    return f"{_SHORT_PLACE}/dgpu-{os.geteuid()}-{name}-workers"


def socket_of(worker_dir: str, lease: int) -> str:
    return f"{worker_dir}/{lease:d}/s"
