"""The end of each node's task lease, as the keeper knows it. Standard library only."""

from __future__ import annotations

from typing import NamedTuple


class _Lease(NamedTuple):
    over_ms: int  # 0: never
    action: str  # freeze | stop | never


_ENDLESS = _Lease(0, "never")


class TaskLeases:
    def __init__(self) -> None:
        self._of_node: dict[str, _Lease] = {}

    def hear(self, node: str, at_ms: int, lease_ms: int, action: str) -> int:
        """A scheduler was in contact at `at_ms`. Returns the end of the lease; 0: it never ends."""
        over_ms = at_ms + lease_ms if action != "never" and lease_ms else 0
        self._of_node[node] = _Lease(over_ms, action)
        return over_ms

    def is_over(self, node: str, now_ms: int) -> bool:
        over_ms = self._of_node.get(node, _ENDLESS).over_ms
        return bool(over_ms) and now_ms >= over_ms

    def action(self, node: str) -> str:
        return self._of_node.get(node, _ENDLESS).action

    def next_end_ms(self, since_ms: int) -> int:
        """The first end after `since_ms`; 0: there is none."""
        later = [lease.over_ms for lease in self._of_node.values() if lease.over_ms > since_ms]
        return min(later, default=0)
