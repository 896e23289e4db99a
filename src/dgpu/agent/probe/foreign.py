"""How much of a card's memory is held by processes that are not ours."""

from __future__ import annotations

from collections.abc import Mapping

MemoryByPid = Mapping[
    int, int | None
]  # MB; None: the driver does not say (containers, WSL, missing permission)


def own_mb(holders: MemoryByPid, ours: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Of our processes, where the driver tells."""
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
        # What is left cannot be divided between them and us: say only what is certain.
        return known
    return max(known, used_mb - sum(memory for memory in own if memory is not None), 0)
