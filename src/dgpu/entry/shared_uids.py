"""Uids that several agents of one machine gave to tenants: there is no boundary between the tasks of these tenants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dgpu.agent.accounts import BOOK, NoAccount, UidBook
from dgpu.entry.keepers import agent_directories

_MAX_NAMED = 5


def shared_uids(directories: Iterable[Path] | None = None) -> list[str]:
    """One line for each uid. Only root can read the books of agents that are root; others find nothing."""
    given: dict[int, list[str]] = {}
    for directory in agent_directories() if directories is None else directories:
        try:
            entries = UidBook(directory / BOOK).given()
        except NoAccount:
            continue
        for tenant, uid in entries:
            given.setdefault(uid, []).append(f"tenant {tenant} of {directory}")
    shared = [f"uid {uid} is {' and '.join(users)}" for uid, users in sorted(given.items()) if len(users) > 1]
    more = len(shared) - _MAX_NAMED
    return shared[:_MAX_NAMED] + ([f"{more} more"] if more > 0 else [])
