"""Output directories of ended leases, deleted when the leases are forgotten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from dgpu.core.model.ids import LeaseId


class Remains:
    def __init__(self, output_dir: str, later: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._output_dir = output_dir
        self._later = later
        self._paths: dict[LeaseId, Path] = {}

    def note(self, lease: int, end: dict[str, Any]) -> None:
        if end.get("output_bytes") or end.get("output_lost"):
            self._paths[LeaseId(lease)] = Path(f"{self._output_dir}/{lease:d}")

    def forget(self, lease_ids: Iterable[LeaseId]) -> None:
        self.delete([self._paths.pop(lease_id) for lease_id in lease_ids if lease_id in self._paths])

    def delete(self, paths: Sequence[Path]) -> None:
        if paths:
            self._later(asyncio.to_thread(_delete, paths))


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
