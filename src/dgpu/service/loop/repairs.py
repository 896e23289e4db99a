"""Files that were found deleted or replaced, for logs and alerts."""

from __future__ import annotations

import time

import structlog

_REPAIRED_S = 600.0  # how long an alert reports a repair

_log = structlog.get_logger("dgpu.scheduler")


class Repairs:
    def __init__(self) -> None:
        self.count = 0
        self._last = ""
        self._noted_s = 0.0

    @property
    def of_late(self) -> str:
        """Files that were found deleted or replaced in the last minutes."""
        return self._last if time.monotonic() - self._noted_s < _REPAIRED_S else ""

    def note(self, detail: str) -> None:
        self.count += 1
        self._last = detail
        self._noted_s = time.monotonic()

    def note_output(self, detail: str) -> None:
        """Files of stored output."""
        _log.warning("output_files_changed", detail=detail)
        self.note(detail)
