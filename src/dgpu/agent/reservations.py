"""Compares the GPU memory that leases use with their reservations. No I/O."""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec.structs import replace

from dgpu.agent.gpu_use import GpuUse, UseTable
from dgpu.agent.run.runner import RunEnd, RunOrder
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome

_FULL_PERCENT = 90  # samples are seconds apart: the last one before the end shows a little less


class Reservations:
    """Peaks are reported with the end of a lease. A lease that exceeds its share is stopped, if so configured, at the
    second sample in a row: a single peak may be over at the next one.
    """

    def __init__(self) -> None:
        self._peaks_mb: dict[LeaseId, int] = {}
        self._outgrown: set[LeaseId] = set()
        self._use: dict[LeaseId, UseTable] = {}

    def look(self, order: RunOrder, memory_mb: int) -> bool:
        """Whether to stop it."""
        lease_id = order.lease_id
        self._peaks_mb[lease_id] = max(self._peaks_mb.get(lease_id, 0), memory_mb)
        if not order.kill_outgrown or not 0 < order.gpu_memory_mb < memory_mb:
            self._outgrown.discard(lease_id)
            return False
        twice = lease_id in self._outgrown
        self._outgrown.add(lease_id)
        return twice

    def note_use(self, running: Container[LeaseId], use: Iterable[tuple[LeaseId, int]]) -> None:
        for lease_id, percent in use:
            if lease_id in running:
                self._use.setdefault(lease_id, UseTable()).add(percent)

    def take(self, lease_id: LeaseId) -> tuple[int, GpuUse]:
        """At its end: the highest memory use, and how busy its GPUs were."""
        self._outgrown.discard(lease_id)
        table = self._use.pop(lease_id, None)
        return self._peaks_mb.pop(lease_id, 0), GpuUse() if table is None else table.use()

    def so_far(self, lease_id: LeaseId) -> tuple[int, GpuUse]:
        """The same of a lease that has not ended."""
        table = self._use.get(lease_id)
        return self._peaks_mb.get(lease_id, 0), GpuUse() if table is None else table.use()


def after_fault(end: RunEnd, order: RunOrder, *, peak_mb: int, xid: int, card_mb: int) -> RunEnd:
    """The driver has no error number for exhausted memory. A program that fails with a driver error while it holds all
    its memory counts as out of memory.
    """
    max_mb = order.gpu_memory_mb or card_mb
    failed = end.outcome is Outcome.SIGNALED or (end.outcome is Outcome.EXITED and end.exit_code != 0)
    if not failed or not max_mb or peak_mb * 100 < max_mb * _FULL_PERCENT:
        return end
    error = f"Xid {xid} of the driver while it held {peak_mb} of {max_mb} MB"
    return replace(end, outcome=Outcome.OUT_OF_MEMORY, error=error)
