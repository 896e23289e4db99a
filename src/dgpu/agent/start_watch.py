"""Orders that are not confirmed as started yet, each with its start deadline. Without I/O."""

from __future__ import annotations

from dgpu.core.model.ids import LeaseId

START_MS = 30_000  # from the order's arrival at the agent until its process must exist
UPLOAD_MS = 3_600_000  # the same for an order whose upload must be fetched and unpacked first
NEVER_MS = 2**62


class StartWatch:
    """Deadlines of each kind are added in order of time, so the first entry of a kind is due next."""

    def __init__(self) -> None:
        self._due: dict[LeaseId, int] = {}
        self._due_with_upload: dict[LeaseId, int] = {}

    @property
    def wake_at_ms(self) -> int:
        return min(next(iter(due.values()), NEVER_MS) for due in (self._due, self._due_with_upload))

    def add(self, lease_id: LeaseId, now_ms: int, *, has_upload: bool = False) -> None:
        if has_upload:
            self._due_with_upload.setdefault(lease_id, now_ms + UPLOAD_MS)
        else:
            self._due.setdefault(lease_id, now_ms + START_MS)

    def drop(self, lease_id: LeaseId) -> None:
        self._due.pop(lease_id, None)
        self._due_with_upload.pop(lease_id, None)

    def late(self, now_ms: int) -> list[LeaseId]:
        """Removes and returns all orders whose deadline has passed."""
        return _late(self._due, now_ms) + _late(self._due_with_upload, now_ms)


def _late(due: dict[LeaseId, int], now_ms: int) -> list[LeaseId]:
    late = []
    for lease_id, at_ms in due.items():
        if at_ms > now_ms:
            break
        late.append(lease_id)
    for lease_id in late:
        del due[lease_id]
    return late
