"""Writes snapshots as fast as it can, until it is killed or has written the given number. Prints each finished one."""

import itertools
import sys
from pathlib import Path

from dgpu.journal.snapshot import load_newest, write_snapshot

directory = Path(sys.argv[1])
most = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
snapshot, _ = load_newest(directory)
for index in itertools.islice(itertools.count(snapshot.index + 1), most):
    write_snapshot(directory, snapshot.state, index=index, epoch=1)
    print(f"{index}\n", end="", flush=True)  # in one piece, or not at all
