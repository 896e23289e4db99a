"""A keeper on a machine with two network mounts: `python dead_mount_keeper.py SETTINGS`. Paths with a part `net` are on
a server that answers, paths with a part `dead` on a server that does not: a chdir into them, or a stat of a program
there, waits forever, as on a hard NFS mount.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

_REAL = {name: getattr(os, name) for name in ("chdir", "access", "statvfs")}


def _hanging(name: str) -> Any:
    def call(path: Any, *more: Any) -> Any:
        while "/dead" in str(path):
            time.sleep(3_600)
        return _REAL[name](path, *more)

    return call


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))
    from dgpu.agent import guard

    for each in _REAL:
        setattr(os, each, _hanging(each))
    try:
        from dgpu.agent.mounts import Mounts
    except ImportError:  # a version that asks no mount table
        pass
    else:
        walk = Mounts._walk
        Mounts._walk = lambda self, path: (  # type: ignore[method-assign]
            "/net" not in path and "/dead" not in path and walk(self, path)
        )
    sys.exit(guard.main(sys.argv[1]))
