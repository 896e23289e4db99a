"""Decides when the process of a member starts: at once, after a back-off, or not at all. Without I/O.

Times are seconds of one clock that never goes back.
"""

from __future__ import annotations

import msgspec

QUICK_S = 60.0  # a process that ran longer resets the count of deaths
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0
# Lines in the log of a process that has ended, and what they mean. Such a process never runs again as it is.
_FATAL = (
    (
        ("the member has been permanently removed from the cluster", "member has been permanently removed"),
        "it was removed from the cluster. To use this machine again: delete {data}, then dgpu ha join with a new token",
    ),
    (
        ("tocommit(", "wal: crc mismatch", "failed to recover v3 backend from snapshot"),
        "its data are damaged or incomplete. Replace it: dgpu ha replace-member {me}",
    ),
    (
        (
            "member count is unequal",
            "unmatched member while checking PeerURLs",
            "has already been bootstrapped",
        ),
        "the cluster does not expect it. Replace it: dgpu ha replace-member {me}",
    ),
    (
        (
            "private key does not match public key",
            "failed to find any PEM data",
            "certificate signed by unknown",
        ),
        "its certificate cannot be used. Delete {tls}, then dgpu ha join with a new token",
    ),
)


class Start(msgspec.Struct, frozen=True):
    pass


class Wait(msgspec.Struct, frozen=True):
    seconds: float


class Refuse(msgspec.Struct, frozen=True):
    why: str


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """For messages."""

    me: str
    data: str
    tls: str


class MemberMachine:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._quick_deaths = 0
        self._start_at_s = 0.0
        self._refused = ""

    def next(self, now_s: float, *, once_started: bool, has_data: bool) -> Start | Wait | Refuse:
        """For a member without a process. `once_started`: the marker says so."""
        if not self._refused and once_started and not has_data:
            self._refused = why_empty(self._places)
        if self._refused:
            return Refuse(self._refused)
        if now_s < self._start_at_s:
            return Wait(self._start_at_s - now_s)
        return Start()

    def on_ended(self, now_s: float, *, ran_s: float, log_end: str) -> float:
        """Returns the delay before the next start; it never gives up, because its peers may be gone for long."""
        self._refused = self._why_fatal(log_end)
        self._quick_deaths = self._quick_deaths + 1 if ran_s < QUICK_S else 1
        delay_s: float = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(self._quick_deaths - 1, 20))
        self._start_at_s = now_s + delay_s
        return delay_s

    def _why_fatal(self, log_end: str) -> str:
        for lines, meaning in _FATAL:
            if any(line in log_end for line in lines):
                return f"member {self._places.me} does not start: " + meaning.format(
                    me=self._places.me, data=self._places.data, tls=self._places.tls
                )
        return ""


def why_empty(places: Places) -> str:
    """An empty member votes like a new one, so it could elect a leader that lacks what it had confirmed before."""
    return (
        f"member {places.me} does not start: {places.data} once had its data and is empty now. With an empty "
        f"directory it would forget what it has confirmed. Replace it, on a machine whose member runs: "
        f"dgpu ha replace-member {places.me}"
    )
