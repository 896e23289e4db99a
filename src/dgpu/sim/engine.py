"""The engine in the simulation, on virtual time: linearisable, with the faults of a real one.

Each call is applied at one moment, or never. The caller may not learn which: a request or its answer can be lost or
late, and a request can be applied long after its caller gave up. `answer` gets the result or an EngineError, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.journal.engine import Candidate, EngineError, EngineUnavailable, Head, Leader, Term
from dgpu.journal.engine_state import EngineState
from dgpu.sim.world import World

TIMEOUT_MS = 3_000
Answer = Callable[[Any], None]
Hint = Callable[[], None]


class SimEngine:
    def __init__(self, world: World) -> None:
        self._world = world
        self.state = EngineState()
        self.applied = 0
        self.applied_late = 0  # after the caller gave up
        self.lost = 0
        self._down_until = 0
        self._slow_until = 0
        self._lossy_until = 0
        self._stale_until = 0
        self._hints_lost_until = 0
        self._cut_off: set[str] = set()
        self._watches: dict[str, Hint] = {}

    def client(self, name: str) -> SimEngineClient:
        return SimEngineClient(self._world, self, name)

    def lose_majority(self, ms: int) -> None:
        """Nothing is applied. Requests on their way are lost, or wait for the majority."""
        self._down_until = max(self._down_until, self._world.now + ms)
        self._world.at(self._down_until, self._elect)

    def slow_down(self, ms: int) -> None:
        """Requests take up to several timeouts, so some are applied after the caller gave up."""
        self._slow_until = max(self._slow_until, self._world.now + ms)

    def lose_messages(self, ms: int) -> None:
        self._lossy_until = max(self._lossy_until, self._world.now + ms)

    def answer_renewals_from_memory(self, ms: int) -> None:
        """A deposed member answers keepalives: they succeed and extend nothing."""
        self._stale_until = max(self._stale_until, self._world.now + ms)

    def revoke_early(self) -> None:
        """Old versions of etcd can revoke a lease that was renewed in time."""
        self.state.revoke_leader()
        self._tell_watchers()

    def lose_hints(self, ms: int) -> None:
        """A watch that was compacted or cancelled tells nothing."""
        self._hints_lost_until = max(self._hints_lost_until, self._world.now + ms)

    def cut_off(self, name: str) -> None:
        self._cut_off.add(name)

    def heal(self, name: str = "") -> None:
        self._cut_off -= {name} if name else set(self._cut_off)

    def watch(self, name: str, hint: Hint) -> None:
        self._watches[name] = hint

    def send(self, name: str, change: Callable[[EngineState, int], Any], answer: Answer) -> None:
        """One try of one call."""
        call = _Call(answer)
        self._world.after(TIMEOUT_MS, lambda: self._give_up(call))
        if name in self._cut_off or self._loses():
            self.lost += 1
            return
        self._world.after(self._delay_ms(), lambda: self._arrive(name, change, call))

    def renewal_is_stale(self) -> bool:
        return self._world.now < self._stale_until

    def _arrive(self, name: str, change: Callable[[EngineState, int], Any], call: _Call) -> None:
        if self._world.now < self._down_until:
            if self._world.chance.random() < 0.5:
                self.lost += 1
            else:
                self._world.at(self._down_until + 1, lambda: self._arrive(name, change, call))
            return
        before = self.state.head.index, self.state.leader(self._world.now)
        outcome: Any
        try:
            outcome = change(self.state, self._world.now)
        except (EngineError, ValueError) as error:
            outcome = error
        self.applied += 1
        self.applied_late += call.is_over
        if before != (self.state.head.index, self.state.leader(self._world.now)):
            self._tell_watchers()
        if name in self._cut_off or self._loses():
            self.lost += 1
            return
        self._world.after(self._delay_ms(), lambda: call.end(outcome))

    def _give_up(self, call: _Call) -> None:
        call.end(EngineUnavailable("the engine did not answer in time"))

    def _elect(self) -> None:
        """A new leader of the engine gives every lease its whole time again."""
        if self._world.now >= self._down_until:
            self.state.extend_leases(self._world.now)

    def _tell_watchers(self) -> None:
        for name, hint in sorted(self._watches.items()):
            if self._world.now >= self._hints_lost_until and name not in self._cut_off:
                self._world.after(self._delay_ms(), hint)

    def _loses(self) -> bool:
        return self._world.now < self._lossy_until and self._world.chance.random() < 0.3

    def _delay_ms(self) -> int:
        if self._world.now < self._slow_until:
            return self._world.between(0, 3 * TIMEOUT_MS)
        return self._world.between(0, 4)


class SimEngineClient:
    """The calls of `Engine`, for one scheduler. Times in a Term are those of the scheduler's own clock."""

    def __init__(self, world: World, engine: SimEngine, name: str) -> None:
        self._world = world
        self._engine = engine
        self.name = name

    def watch(self, hint: Hint) -> None:
        """`hint` is called when the head or the leader may have changed, perhaps; it proves nothing."""
        self._engine.watch(self.name, hint)

    def head(self, answer: Callable[[Head | EngineError], None]) -> None:
        self._send(lambda state, _: state.head, answer)

    def floor(self, answer: Callable[[int | EngineError], None]) -> None:
        self._send(lambda state, _: state.floor, answer)

    def leader(self, answer: Callable[[Leader | EngineError | None], None]) -> None:
        self._send(lambda state, now: state.leader(now), answer)

    def campaign(self, candidate: Candidate, asked_at_ms: int, answer: Answer) -> None:
        self._send(lambda state, now: state.campaign(candidate, now, granted_at_ms=asked_at_ms), answer)

    def renew(self, term: Term, answer: Answer) -> None:
        if self._engine.renewal_is_stale():
            self._send(lambda _state, _now: None, answer)
        else:
            self._send(lambda state, now: state.renew(term, now), answer)

    def confirm(self, term: Term, answer: Answer) -> None:
        self._send(lambda state, now: state.confirm(term, now), answer)

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes, answer: Answer) -> None:
        self._send(lambda state, now: state.commit(term, before, index, epoch, record, now), answer)

    def records(self, first_index: int, last_index: int, answer: Answer) -> None:
        self._send(lambda state, _: state.records(first_index, last_index), answer)

    def chain_at(self, index: int, answer: Answer) -> None:
        self._send(lambda state, _: state.chain_at(index), answer)

    def snapshot(self, answer: Answer) -> None:
        """The stored snapshot and its parts at one moment; None: there is none."""
        self._send(
            lambda state, _: state.snapshot and (state.snapshot, state.snapshot_parts(state.snapshot)), answer
        )

    def store_snapshot(self, term: Term, index: int, epoch: int, parts: list[bytes], answer: Answer) -> None:
        self._send(lambda state, now: state.store_snapshot(term, index, epoch, parts, now), answer)

    def delete_covered(self, term: Term, answer: Answer) -> None:
        self._send(lambda state, now: state.delete_covered(term, now), answer)

    def resign(self, term: Term, answer: Answer) -> None:
        self._send(lambda state, _: state.revoke(term.lease_id), answer)

    def _send(self, change: Callable[[EngineState, int], Any], answer: Answer) -> None:
        self._engine.send(self.name, change, answer)


class _Call:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.is_over = False

    def end(self, outcome: Any) -> None:
        if not self.is_over:
            self.is_over = True
            self._answer(outcome)
