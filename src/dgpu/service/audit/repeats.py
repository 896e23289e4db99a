"""Equal refusals: the first one is written at once, the others of its minute become one entry with their number.

So a flood of guesses costs a bounded number of entries, in the journal and in memory.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.model.audit import AuditEntry

WINDOW_MS: Final = 60_000
MAX_WINDOWS: Final = 256
OTHERS: Final = "others"  # the origin of refusals that found no window of their own

Key = tuple[str, ...]


class _Window:
    __slots__ = ("began", "counted")

    def __init__(self, began: int) -> None:
        self.began = began
        self.counted: AuditEntry | None = None  # with the number of attempts that are not written yet


class Repeats:
    def __init__(self) -> None:
        self._windows: dict[Key, _Window] = {}

    def take(self, entry: AuditEntry, now: int) -> AuditEntry | None:
        """The entry to write now; None: it is only counted."""
        key = _key(entry)
        if key not in self._windows and len(self._windows) >= MAX_WINDOWS:
            entry = _without_principal(entry)
            key = _key(entry)
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(now)
            return entry
        self._count(window, entry, now)
        return None

    def give_back(self, entry: AuditEntry, now: int) -> None:
        """It could not be written: it is counted, and written later."""
        window = self._windows.setdefault(_key(entry), _Window(now))
        self._count(window, entry, now)

    def due(self, now: int, *, also_open: bool = False) -> list[AuditEntry]:
        """Counted attempts of windows that are over; with `also_open`, of all windows."""
        found: list[AuditEntry] = []
        for key, window in list(self._windows.items()):
            is_over = now - window.began >= WINDOW_MS
            if window.counted is not None and (is_over or also_open):
                found.append(window.counted)
                window.counted = None
            elif is_over:
                del self._windows[key]  # else it ends in the next minute, if it stays quiet
            if is_over:
                window.began = now
        return found

    def _count(self, window: _Window, entry: AuditEntry, now: int) -> None:
        before = window.counted
        if before is None:
            window.counted = replace(entry, since=entry.since or now)
            return
        same = before.subject == entry.subject
        window.counted = replace(
            before,
            count=before.count + entry.count,
            subject=before.subject if same else "",
            tenant_id=before.tenant_id if before.tenant_id == entry.tenant_id else "",
            request_id=entry.request_id,
        )


def _key(entry: AuditEntry) -> Key:
    return entry.user, entry.token_id, entry.origin, entry.action, entry.code


def _without_principal(entry: AuditEntry) -> AuditEntry:
    return AuditEntry(origin=OTHERS, status=entry.status, code=entry.code, count=entry.count)
