"""The lease log, which the next keeper reads: one append-only file, one line per batch.

Standard library only. A line is written before the processes of its batch start, and before their ends are
reported. Nothing is fsynced: the file must survive processes but not the kernel, because tasks end with the kernel.
It contains no command and no environment.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

Record = dict[str, Any]  # of a lease, see record_of; "end" once it has ended

FILE_NAME = "leases.log"  # in the keeper's directory
_COMPACT_BYTES = 8 * 1024 * 1024


class LeaseLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.live: dict[int, Record] = _read(path)
        self._fd = -1
        self._bytes = 0
        self._compact()

    def begin(self, records: list[Record]) -> None:
        """Raises OSError if the disk is full: then none of the batch may start."""
        self._append({"begin": records})
        for record in records:
            self.live[record["lease"]] = record

    def end(self, ends: dict[int, Record]) -> None:
        for lease, end in ends.items():
            record = self.live.get(lease)
            if record is not None:
                record["end"] = end
        # Kept in memory and reported anyway: a full disk must not hide an end.
        with contextlib.suppress(OSError):
            self._append({"end": [[lease, end] for lease, end in ends.items()]})

    def forget(self, leases: list[int]) -> None:
        for lease in leases:
            self.live.pop(lease, None)
        with contextlib.suppress(OSError):
            self._append({"forget": leases})
        if self._bytes > _COMPACT_BYTES:
            with contextlib.suppress(OSError):
                self._compact()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: Record) -> None:
        encoded = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._fd, encoded)
        self._bytes += written
        if written < len(encoded):
            # An incomplete line would corrupt the next one.
            with contextlib.suppress(OSError):
                os.write(self._fd, b"\n")
            raise OSError(28, "no space left for the lease log")

    def _compact(self) -> None:
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        old, old_bytes = self._fd, self._bytes
        self._fd, self._bytes = fd, 0
        try:
            if self.live:
                self._append({"begin": list(self.live.values())})
            fresh.replace(self._path)
        except OSError:
            os.close(fd)
            self._fd, self._bytes = old, old_bytes
            if old < 0:
                raise
            return
        if old >= 0:
            os.close(old)


def read_leases(directory: Path) -> dict[int, Record]:
    """For another process: the leases of this directory's keeper, as its file has them now."""
    return _read(directory / FILE_NAME)


def record_of(order: dict[str, Any], now_ms: int) -> Record:
    return {
        "lease": order["lease"],
        "task": order["task"],
        "attempt": order["attempt"],
        "node": order["node"],
        "gpus": order["gpus"],
        "started_ms": now_ms,
        "most_mb": order.get("most_mb", 0),  # kept for an agent that adopts it
        "nonce": order.get("nonce", ""),  # the same: the journal of the lease
        "cluster": order.get("cluster", ""),
        "ports": order.get("ports", []),  # the same: each port with the port of the node
        "uid": order["account"][0] if order.get("account") else None,  # None: the keeper's own
        "worker_silence_ms": order.get(
            "worker_silence_ms", 0
        ),  # kept for an agent that adopts it; 0: no worker
        # Of a run in a container: the guard asks this engine if the keeper dies.
        "engine": order["container"]["socket"] if "container" in order else "",
    }


def _read(path: Path) -> dict[int, Record]:
    live: dict[int, Record] = {}
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return live
    for encoded in text.split(b"\n"):
        try:
            line = json.loads(encoded)
        except ValueError:
            continue  # incomplete after a full disk or a power failure
        if not isinstance(line, dict):
            continue
        for record in line.get("begin", ()):
            live[record["lease"]] = record
        for lease, end in line.get("end", ()):
            if lease in live:
                live[lease]["end"] = end
        for lease in line.get("forget", ()):
            live.pop(lease, None)
    return live
