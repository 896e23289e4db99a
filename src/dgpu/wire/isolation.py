"""`isolation.users`: as which Unix users the tasks of tenants run."""

from __future__ import annotations

import re
from typing import Final

import msgspec

NONE: Final = "none"
KEY: Final = "isolation.users"
MAX_UID: Final = 2**32 - 2  # the last one means "no user"
EXPECTED: Final = (
    "none (no boundary between users), a map from tenants to Unix users, "
    "or a range of uids such as 70000-79999"
)
OPEN: Final = "open"  # for views: auth.mode is none
NOTICES: Final = {
    NONE: "There is no boundary between users (isolation.users: none).",
    OPEN: "Every client that reaches this scheduler is an administrator (auth.mode: none).",
}
# Everything that a node may enforce, in the order of views. A node lists those that it does enforce.
FEATURES: Final = ("users", "cgroup", "memory", "pids", "cpus", "devices")

_RANGE = re.compile(r"(\d{1,10})-(\d{1,10})")


def uid_range(text: str) -> range | None:
    """None: it is no range. Raises ValueError for one that no machine can have."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    if not 0 < first <= last <= MAX_UID:
        raise ValueError(f"expected uids from 1 to {MAX_UID}, the lower one first, got {text!r}")
    return range(first, last + 1)


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The value of `isolation.users`."""

    users: str | dict[str, str] = ""  # empty: not set

    @property
    def is_set(self) -> bool:
        return bool(self.users)

    @property
    def has_boundary(self) -> bool:
        """Tasks of different tenants run as different Unix users."""
        return self.is_set and self.users != NONE

    @property
    def word(self) -> str:
        """For views."""
        return ("users" if self.has_boundary else NONE) if self.is_set else ""

    def user_of(self, tenant: str) -> str:
        """A Unix user, or a range of uids; empty: this tenant has none."""
        return self.users if isinstance(self.users, str) else self.users.get(tenant, "")
