"""The script that an agent starts: a guard that starts the keeper. Standard library only, so it starts fast.

Run by path with -I -S, so neither site-packages nor the environment affect imports.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from dgpu.agent.guard import main

    sys.exit(main(sys.argv[1]))
