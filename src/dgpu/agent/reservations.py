"""What leases use of their GPUs' memory, against what they hold. No I/O."""

from __future__ import annotations

from dgpu.agent.run.runner import RunOrder
from dgpu.core.ids import LeaseId


class Reservations:
    """Peaks travel with the end of a lease. One that outgrows what it shares is named at the second look in a row, if
    it is to be stopped for that: memory of one moment may be gone at the next.
    """

    def __init__(self) -> None:
        self._peaks_mb: dict[LeaseId, int] = {}
        self._outgrown: set[LeaseId] = set()

    def look(self, order: RunOrder, memory_mb: int) -> bool:
        """Is it to be stopped?"""
        lease_id = order.lease_id
        self._peaks_mb[lease_id] = max(self._peaks_mb.get(lease_id, 0), memory_mb)
        if not order.kill_outgrown or not 0 < order.gpu_memory_mb < memory_mb:
            self._outgrown.discard(lease_id)
            return False
        twice = lease_id in self._outgrown
        self._outgrown.add(lease_id)
        return twice

    def peak_mb(self, lease_id: LeaseId) -> int:
        return self._peaks_mb.get(lease_id, 0)

    def forget(self, lease_id: LeaseId) -> None:
        self._peaks_mb.pop(lease_id, None)
        self._outgrown.discard(lease_id)
