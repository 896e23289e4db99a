"""Orders that are not confirmed as started yet, each with its start deadline. Without I/O."""

from __future__ import annotations

from dgpu.core.model.ids import LeaseId

START_MS = 30_000  # from the order's arrival at the agent until its process must exist
NEVER_MS = 2**62


class StartWatch:
    """Deadlines are added in order of time, so the first entry is always due next."""

    def __init__(self) -> None:
        self._due: dict[LeaseId, int] = {}

    @property
    def wake_at_ms(self) -> int:
        return next(iter(self._due.values()), NEVER_MS)

    def add(self, lease_id: LeaseId, now_ms: int) -> None:
        self._due.setdefault(lease_id, now_ms + START_MS)

    def drop(self, lease_id: LeaseId) -> None:
        self._due.pop(lease_id, None)

    def late(self, now_ms: int) -> list[LeaseId]:
        """Removes and returns all orders whose deadline has passed."""
        late = []
        for lease_id, at_ms in self._due.items():
            if at_ms > now_ms:
                break
            late.append(lease_id)
        for lease_id in late:
            del self._due[lease_id]
        return late
