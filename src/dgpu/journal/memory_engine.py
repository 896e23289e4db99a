"""An engine without a network, for tests: each scheduler has a MemoryEngine, and all share one EngineState."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from dgpu.journal.engine import (
    NOT_KEPT,
    Candidate,
    EngineHealth,
    EngineUnavailable,
    Head,
    Leader,
    StateDigest,
    StoredSnapshot,
    Term,
    boottime_ms,
)
from dgpu.journal.engine_state import EngineState

_QUOTA_BYTES = 2 << 30
_Answer = TypeVar("_Answer")


class SharedState:
    """One EngineState for several threads. A call that changes it wakes all waiters."""

    def __init__(self, state: EngineState | None = None, clock: Callable[[], int] = boottime_ms) -> None:
        self.state = state or EngineState()
        self.now_ms = clock
        self.changed = threading.Condition()


class MemoryEngine:
    def __init__(self, shared: SharedState | None = None) -> None:
        self.shared = shared or SharedState()
        self.is_down = False  # set it: no call reaches the engine
        self.lost_answers = 0  # set it: so many calls are applied, but their answers are lost
        self.renews_in_vain = False  # set it: a deposed member answers renewals and extends nothing

    def identify(self, cluster_id: str) -> str:
        return self._call(lambda state, _: state.identify(cluster_id))

    def head(self) -> Head:
        return self._call(lambda state, _: state.head)

    def floor(self) -> int:
        return self._call(lambda state, _: state.floor)

    def leader(self) -> Leader | None:
        return self._call(lambda state, now: state.leader(now))

    def campaign(self, candidate: Candidate) -> Term | None:
        asked_at = self.shared.now_ms()
        return self._call(lambda state, now: state.campaign(candidate, now, granted_at_ms=asked_at))

    def renew(self, term: Term) -> None:
        if not self.renews_in_vain:
            self._call(lambda state, now: state.renew(term, now))

    def confirm(self, term: Term) -> None:
        self._call(lambda state, now: state.confirm(term, now))

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes) -> Head:
        return self._call(lambda state, now: state.commit(term, before, index, epoch, record, now))

    def records(self, first_index: int, last_index: int) -> list[bytes]:
        return self._call(lambda state, _: state.records(first_index, last_index))

    def chain_at(self, index: int) -> bytes | None:
        return self._call(lambda state, _: state.chain_at(index))

    def snapshot(self) -> StoredSnapshot | None:
        return self._call(lambda state, _: state.snapshot)

    def snapshot_parts(self, stored: StoredSnapshot) -> Iterator[bytes]:
        yield from self._call(lambda state, _: state.snapshot_parts(stored))

    def store_snapshot(
        self, term: Term, index: int, epoch: int, parts: Iterable[bytes], *, kept_from: int = NOT_KEPT
    ) -> None:
        read = tuple(parts)
        self._call(lambda state, now: state.store_snapshot(term, index, epoch, read, now, kept_from))

    def delete_covered(self, term: Term) -> None:
        self._call(lambda state, now: state.delete_covered(term, now))

    def digest(self) -> StateDigest | None:
        return self._call(lambda state, _: state.digest)

    def publish_digest(self, term: Term, digest: StateDigest) -> None:
        self._call(lambda state, now: state.publish_digest(term, digest, now))

    def key_prints(self) -> dict[str, str]:
        return self._call(lambda state, _: dict(state.key_prints))

    def publish_key_prints(self, term: Term, prints: dict[str, str]) -> None:
        self._call(lambda state, now: state.publish_key_prints(term, prints, now))

    def health(self) -> EngineHealth:
        if self.is_down:
            return EngineHealth(members=1)
        with self.shared.changed:
            state = self.shared.state
            return EngineHealth(
                size_bytes=state.stored_bytes,
                quota_bytes=_QUOTA_BYTES,
                is_full=state.is_full,
                members=1,
                members_healthy=1,
                has_quorum=True,
            )

    def wait(self, index: int, timeout_s: float) -> None:
        shared = self.shared
        with shared.changed:
            leader = shared.state.leader(shared.now_ms())
            shared.changed.wait_for(
                lambda: shared.state.head.index > index or shared.state.leader(shared.now_ms()) != leader,
                timeout_s,
            )

    def resign(self, term: Term) -> None:
        self._call(lambda state, _: state.revoke(term.lease_id))

    def close(self) -> None:
        self.is_down = True

    def _call(self, change: Callable[[EngineState, int], _Answer]) -> _Answer:
        if self.is_down:
            raise EngineUnavailable("no member of the engine answers")
        with self.shared.changed:
            try:
                answer = change(self.shared.state, self.shared.now_ms())
            finally:
                self.shared.changed.notify_all()
        if self.lost_answers:
            self.lost_answers -= 1
            raise EngineUnavailable("the engine did not answer in time")
        return answer
