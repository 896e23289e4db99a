"""Output of many tasks that ended before the master and its files are lost: is all of it read from the new master?

python tests/faults/survival.py --tasks 1000
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from e2e.conftest import eventually
from e2e.ha_cluster import HaCluster
from e2e.test_survival import lose, on_node, run_tasks, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    count = parser.parse_args().tasks
    with HaCluster() as cluster:
        cluster.start_all()
        ids = run_tasks(cluster, "a", count)
        kept = len(on_node(cluster))
        began = time.monotonic()
        lose(cluster, "a")
        eventually(lambda: cluster.is_master("b"), "b to take over")
        led = time.monotonic()
        missing = wrong(cluster, "b", ids)
        read = time.monotonic()
    print(f"{count} tasks ended; the node still had the output of {kept} of them when the master was killed")
    print(f"takeover after {led - began:.1f} s; all output asked for within {read - led:.1f} s after it")
    print(f"wrong or missing: {len(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
