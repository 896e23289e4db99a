"""Memory of a GPU that belongs to processes outside dgpu."""

from __future__ import annotations

from collections.abc import Mapping

MemoryByPid = Mapping[
    int, int | None
]  # MB; None: unknown to the driver (containers, WSL, missing permission)


def own_mb(holders: MemoryByPid, ours: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Memory of dgpu's processes, if the driver reports it."""
    return tuple(
        (pid, memory) for pid, memory in sorted(holders.items()) if pid in ours and memory is not None
    )


def foreign_mb(*, used_mb: int, holders: MemoryByPid, ours: frozenset[int]) -> int:
    strangers = [memory for pid, memory in holders.items() if pid not in ours]
    known = sum(memory for memory in strangers if memory is not None)
    if None not in strangers:
        return known
    own = [memory for pid, memory in holders.items() if pid in ours]
    if None in own:
        # The rest cannot be divided between them and dgpu's tasks: report only the certain part.
        return known
    return max(known, used_mb - sum(memory for memory in own if memory is not None), 0)
