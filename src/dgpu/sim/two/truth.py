"""The engine's keys, watched: the committed journal is the truth that every promise is checked against."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.core.apply.table import apply
from dgpu.core.digest import digest
from dgpu.core.state import ClusterState
from dgpu.journal.engine import NOT_KEPT, Head, Term
from dgpu.journal.engine_state import EngineState
from dgpu.journal.format import record_at
from dgpu.journal.segments import group_of
from dgpu.journal.snapshot import decode_snapshot
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.sim.checkers import Checkers, Violation
from dgpu.sim.history import SimHistory
from dgpu.sim.output_scheduler import SimOutput


class Truth(EngineState):
    def __init__(self, seed: int, checkers: Checkers, output: SimOutput) -> None:
        super().__init__()
        self._seed = seed
        self._checkers = checkers
        self._output = output
        self._revoked_early: set[int] = set()
        self._digests: dict[int, str] = {}  # of the state after each group
        self.snapshots = 0
        self.replayed = ClusterState()
        self.history = SimHistory()

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes, now_ms: int) -> Head:
        last = self.head
        head = super().commit(term, before, index, epoch, record, now_ms)
        if head is not last:
            self._on_committed(last, index, epoch, record)
        return head

    def store_snapshot(
        self,
        term: Term,
        index: int,
        epoch: int,
        parts: Sequence[bytes],
        now_ms: int,
        kept_from: int = NOT_KEPT,
    ) -> None:
        last = self.snapshot
        super().store_snapshot(term, index, epoch, parts, now_ms, kept_from)
        if self.snapshot is last:
            return
        self.snapshots += 1
        stored = decode_snapshot(b"".join(parts), "the engine")
        if stored.index != index or digest(stored.state) != self._digests[index]:
            raise Violation(f"seed {self._seed}: the snapshot of group {index} is not the state there")

    def revoke_leader(self) -> None:
        if self._leader is not None:
            self._revoked_early.add(self._leader.fence)
        super().revoke_leader()

    def check_may_act(self, term: Term, now_ms: int) -> None:
        """The rule of the clock: nothing leaves a scheduler while another one may lead. It cannot hold for a lease that
        the engine revoked too early.
        """
        leader = self.leader(now_ms)
        if leader is not None and leader.fence != term.fence and term.fence not in self._revoked_early:
            raise Violation(
                f"seed {self._seed}: fence {term.fence} acts, but {leader.candidate.name} leads with {leader.fence}"
            )

    def _on_committed(self, last: Head, index: int, epoch: int, record: bytes) -> None:
        if index != last.index + 1 or epoch < last.epoch:
            raise Violation(
                f"seed {self._seed}: group {index} of epoch {epoch} was committed after {last.index} of {last.epoch}"
            )
        found = record_at(memoryview(record), 0)
        if found is None or found.index != index:
            raise Violation(f"seed {self._seed}: group {index} was stored damaged")
        group = CommittedGroup(index=index, events=tuple(group_of(found, "engine").events))
        for event in group.events:
            apply(self.replayed, event)
        self._digests[index] = digest(self.replayed)
        self.history.see(group)
        self._output.on_group(group)
        self._checkers.on_committed(self.replayed, group.events, self.history)
