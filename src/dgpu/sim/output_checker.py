"""Checks that stored output is what the attempt wrote, and that missing output is declared and still on its node."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dgpu.agent.output_words import OutputSettled
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.task_output.pack import OutputPart

Attempt = tuple[LeaseId, TaskId, int]


class OutputChecker:
    def __init__(self, violation: Callable[[str], AssertionError]) -> None:
        self._violation = violation
        # By node: after a lost state, two clusters use the same numbers for runs on different nodes.
        self._written: dict[Attempt, dict[NodeId, bytes]] = {}
        self._settled: dict[Attempt, OutputSettled] = {}
        self.checked = 0  # attempts with output
        self.gaps = 0  # attempts that the store has only in part
        self._is_state_lost = False  # then earlier leases are unknown, and their output is refused

    def on_written(self, node_id: NodeId, key: Attempt, text: bytes) -> None:
        self._written.setdefault(key, {})[node_id] = text

    def on_lost(self) -> None:
        """The scheduler's store may be lost with its state."""
        self._is_state_lost = True
        self._settled.clear()

    def on_settled(self, key: Attempt, settled: OutputSettled) -> None:
        if settled.refused and self._is_state_lost:
            return
        if settled.refused:
            raise self._violation(f"output of {key} from its own node was refused: {settled.refused}")
        self._settled[key] = settled

    def check(self, stored: Iterable[OutputPart], on_nodes: Iterable[Attempt]) -> None:
        by_attempt: dict[Attempt, list[OutputPart]] = {}
        for part in stored:
            by_attempt.setdefault((part.lease_id, part.task_id, part.attempt), []).append(part)
        for key, parts in by_attempt.items():
            self._check_parts(key, parts)
        kept = set(on_nodes)
        for key, settled in self._settled.items():
            parts = by_attempt.get(key, [])
            if not any(part.is_last for part in parts):
                raise self._violation(f"the agent was told that the output of {key} is stored, but it is not")
            missing = len(self._written[key][parts[0].node_id]) - len(_covered(parts))
            self.checked += 1
            self.gaps += missing > 0
            if missing and (settled.is_whole or key not in kept):
                raise self._violation(f"{missing} bytes of {key} are neither stored nor on the node")

    def _check_parts(self, key: Attempt, parts: list[OutputPart]) -> None:
        written = self._written.get(key, {})
        for part in parts:
            text = written.get(part.node_id)
            if text is None:
                raise self._violation(
                    f"output of {key} was stored for node {part.node_id}, not {list(written)}"
                )
            if text[part.offset : part.offset + len(part.content)] != part.content:
                raise self._violation(f"stored output of {key} is not what it wrote: {part.content[:40]!r}")
            if part.is_last and part.end != len(text):
                raise self._violation(f"the end of {key} was stored as {part.end}, but it wrote {len(text)}")


def _covered(parts: Iterable[OutputPart]) -> set[int]:
    return {place for part in parts for place in range(part.offset, part.offset + len(part.content))}
