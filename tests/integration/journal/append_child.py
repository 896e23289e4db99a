"""Appends small groups until the journal breaks, and prints the error; or appends the given number."""

import itertools
import sys
from pathlib import Path

from dgpu.journal.errors import JournalBroken
from dgpu.journal.file import FileJournal

journal = FileJournal.open(Path(sys.argv[1]), segment_bytes=1 << 14, reserve_bytes=1 << 13)
recovery = journal.recover()
most = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
for index in itertools.islice(itertools.count(recovery.index + 1), most):
    try:
        journal.append(1, index, b"x" * 3_000 if len(sys.argv) > 2 else b"x" * 200)
    except JournalBroken as error:
        print("broken", index, type(error.__cause__).__name__, error.__cause__.errno, flush=True)
        try:
            journal.append(1, index, b"x")
        except JournalBroken:
            print("stays broken", flush=True)
        break
    print(f"acknowledged {index}\n", end="", flush=True)  # in one piece, or not at all
