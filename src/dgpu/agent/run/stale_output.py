"""Output directories that no lease owns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from dgpu.agent.store import Record

_STALE = ".old"


def find_stale(output_dir: Path, records: Iterable[Record]) -> list[Path]:
    """Unknown directories, left by a crash between forgetting and deleting.

    Calls of workers have no records. While a worker runs, an unknown directory may belong to one of its calls: it stays
    until an agent starts without workers.
    """
    records = tuple(records)
    leases = {str(record["lease"]) for record in records}
    has_workers = any(record.get("worker_silence_ms") and "end" not in record for record in records)
    stale: list[Path] = []
    for entry in output_dir.iterdir():
        if entry.name.isdigit() and entry.name not in leases and not has_workers:
            # An entry of this name may remain from a failed deletion: then this one waits for a later round.
            with contextlib.suppress(OSError):
                stale.append(entry.rename(entry.with_suffix(_STALE)))
        elif entry.suffix == _STALE:
            stale.append(entry)
    return stale
