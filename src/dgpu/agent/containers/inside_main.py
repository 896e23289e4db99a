"""The script that the keeper starts for each command inside a container. Run by path with -I -S; see `keeper_main`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from dgpu.agent.containers.inside import main

    main()
