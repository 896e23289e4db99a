"""The script that an agent starts: a guard that starts the keeper. Standard library only, hence quick to start.

Run by path with -I -S, so neither site-packages nor the environment have a say in what is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from dgpu.agent.guard import main

    sys.exit(main(sys.argv[1]))
