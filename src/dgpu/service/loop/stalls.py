"""Detects when the event loop did not run."""

from __future__ import annotations

import time

import structlog

_STALL_MS = 1_000

_log = structlog.get_logger("dgpu.scheduler")


class Stalls:
    def __init__(self) -> None:
        self._cpu_s = time.process_time()

    def on_beat(self, late_ms: int) -> None:
        """Also logs the CPU time since the last beat: little of it means that the process was not scheduled, or was
        swapped out.
        """
        cpu_s, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        if late_ms >= _STALL_MS:
            _log.warning("loop_stalled", seconds=late_ms / 1_000, cpu_seconds=round(cpu_s, 2))
