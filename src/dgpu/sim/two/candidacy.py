"""Carries out the leadership machine against the simulated engine, as `service.leadership.candidacy` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dgpu.journal.engine import (
    BelowFloor,
    Candidate,
    EngineFull,
    EngineUnavailable,
    FenceLost,
    Head,
    Leader,
    Term,
)
from dgpu.journal.format import encode_record
from dgpu.service.leadership import words
from dgpu.service.leadership.machine import Leadership
from dgpu.service.machine.outputs import Append
from dgpu.sim.checkers import Violation
from dgpu.sim.engine import SimEngineClient
from dgpu.sim.two.copy import LocalCopy
from dgpu.sim.world import World
from dgpu.wire.records import SCHEMA

_PASS_MS = 200
_RETRY_MS = 100


class Owner(Protocol):
    """The life of a scheduler."""

    def guarded(self, action: Callable[..., None]) -> Callable[..., None]:
        """The same action, later: not while the process is stopped, never after the end of this life."""
        ...

    def on_group(self, encoded: bytes) -> bool:
        """False: the local disk has no room."""
        ...

    def on_won(self) -> None: ...

    def on_stepped_down(self) -> None: ...


class SimCandidacy:
    def __init__(
        self,
        world: World,
        engine: SimEngineClient,
        copy: LocalCopy,
        candidate: Candidate,
        now_ms: Callable[[], int],
        owner: Owner,
    ) -> None:
        self.machine = Leadership()
        self._world = world
        self._engine = engine
        self._copy = copy
        self._candidate = candidate
        self.now_ms = now_ms
        self._owner = owner
        self._head = Head()  # that the next commit compares
        self._waiting = 0  # for a hint, since this Wait
        self._waits = 0
        self._held: list[Callable[[], None]] = []

    def start(self) -> None:
        self._engine.watch(self._owner.guarded(self._on_hint))
        self._pass()
        self.put(words.Open())

    def may_act(self) -> bool:
        return self.machine.may_act(self.now_ms())

    def when_allowed(self, action: Callable[[], None]) -> None:
        self._held.append(action)

    def put(self, value: words.Input) -> None:
        for output in self.machine.on_input(value, self.now_ms()):
            self._carry(output)

    def _pass(self) -> None:
        self._later(_PASS_MS, self._pass)
        self.put(words.Passed())

    def _carry(self, output: words.Output) -> None:
        match output:
            case words.Follow():
                self._follow()
            case words.Wait():
                self._wait(output)
            case words.Campaign():
                self._campaign()
            case words.Renew():
                self._renew(output.term)
            case words.BeginEpoch():
                self._owner.on_won()
            case words.StepDown():
                self._held.clear()
                self._owner.on_stepped_down()

    # Following

    def _follow(self) -> None:
        asked_at_ms = self.now_ms()
        self._ask(
            self._engine.leader,
            to=words.Follow,
            then=lambda leader: self._ask(
                self._engine.head,
                to=words.Follow,
                then=lambda head: self._catch_up(head, leader, asked_at_ms),
            ),
        )

    def _catch_up(self, head: Head, leader: Leader | None, asked_at_ms: int) -> None:
        """Until the copy has everything up to a head that was just read."""
        copy = self._copy
        if head.index < copy.last_index or (head.index == copy.last_index and head.chain != copy.chain):
            raise Violation(f"the copy of {self._candidate.name} is not a part of the engine's journal")
        if head.index == copy.last_index:
            self._head = head
            self.put(words.Followed(asked_at_ms=asked_at_ms, leader=leader))
            return

        def copied(records: list[bytes]) -> None:
            for number, record in enumerate(records):
                if not self._owner.on_group(record):
                    if not number:
                        self.put(words.CannotCopy(why="the disk is full"))
                        return
                    break
            self._ask(
                self._engine.head,
                to=words.Follow,
                then=lambda newer: self._catch_up(newer, leader, asked_at_ms),
            )

        self._ask(
            lambda answer: self._engine.records(copy.last_index + 1, head.index, answer),
            to=words.Follow,
            then=copied,
        )

    def _wait(self, output: words.Wait) -> None:
        self._waits += 1
        number = self._waits
        self._waiting = 0 if output.is_pause else number

        def woke() -> None:
            if self._waits == number:
                self._waits += 1
                self._waiting = 0
                self.put(words.Woke())

        self._later(output.timeout_ms, woke)

    def _on_hint(self) -> None:
        if self._waiting:
            self._waits += 1
            self._waiting = 0
            self.put(words.Woke())

    # Leading

    def _campaign(self) -> None:
        asked_at_ms = self.now_ms()
        self._ask(
            lambda answer: self._engine.campaign(self._candidate, asked_at_ms, answer),
            to=words.Campaign,
            then=lambda term: self.put(words.Campaigned(term=term)),
        )

    def _renew(self, term: Term) -> None:
        sent_at_ms = self.now_ms()
        self._ask(
            lambda answer: self._engine.renew(term, answer),
            to=words.Renew,
            then=lambda _: self._ask(
                lambda answer: self._engine.confirm(term, answer),
                to=words.Renew,
                then=lambda _: self._on_renewed(sent_at_ms),
            ),
        )

    def _on_renewed(self, sent_at_ms: int) -> None:
        self.put(words.Renewed(sent_at_ms=sent_at_ms))
        if self._held and self.may_act():
            held, self._held = self._held, []
            for action in held:
                action()

    def confirm(self, done: Callable[[], None]) -> None:
        """Repeated until the engine answers: a later confirmation is as good."""
        term = self.machine.term
        if term is None:
            return
        self._ask(
            lambda answer: self._engine.confirm(term, answer),
            then=lambda _: done(),
            on_unknown=lambda: self._later(_RETRY_MS, lambda: self.confirm(done)),
        )

    def commit(self, group: Append, done: Callable[[], None], not_stored: Callable[[], None]) -> None:
        term = self.machine.term
        if term is None:
            raise AssertionError("only the leader commits")
        record = encode_record(schema=SCHEMA, epoch=group.epoch, index=group.index, payload=group.payload)
        self._send(term, self._head, group, record, done, not_stored)

    def _send(
        self,
        term: Term,
        before: Head,
        group: Append,
        record: bytes,
        done: Callable[[], None],
        not_stored: Callable[[], None],
    ) -> None:
        def committed(head: Head) -> None:
            self._head = head
            self._copy.write_later(record, self._owner.guarded(done))

        self._ask(
            lambda answer: self._engine.commit(term, before, group.index, group.epoch, record, answer),
            then=committed,
            # The same transaction again: this one may still be applied.
            on_unknown=lambda: self._later(
                _RETRY_MS, lambda: self._send(term, before, group, record, done, not_stored)
            ),
            on_full=not_stored,
        )

    def store_snapshot(self, index: int, snapshot: bytes) -> None:
        """As `service.leadership.trimming` does it: the snapshot first, then the deletion."""
        term = self.machine.term
        if term is None or not self.machine.leads:
            return
        self._ask(
            lambda answer: self._engine.store_snapshot(term, index, 0, [snapshot], answer),
            then=lambda _: self._ask(
                lambda answer: self._engine.delete_covered(term, answer), then=lambda _: None
            ),
            on_full=lambda: None,
        )

    # Calls of the engine

    def _later(self, ms: int, action: Callable[[], None]) -> None:
        self._world.after(ms, self._owner.guarded(action))

    def _ask(
        self,
        call: Callable[[Callable[[Any], None]], None],
        *,
        then: Callable[[Any], None],
        to: type[words.Output] | None = None,
        on_unknown: Callable[[], None] = lambda: None,
        on_full: Callable[[], None] | None = None,
    ) -> None:
        """`to`: the output of the machine that the call carries out."""

        def answered(outcome: Any) -> None:
            if isinstance(outcome, EngineUnavailable):
                if to is not None:
                    self.put(words.Unavailable(to=to))
                on_unknown()
            elif isinstance(outcome, FenceLost | BelowFloor):
                self.put(words.FenceGone(why=str(outcome)))
            elif isinstance(outcome, EngineFull) and on_full is not None:
                on_full()
            elif isinstance(outcome, Exception):
                raise Violation(f"{self._candidate.name}: the engine answered {outcome!r}")
            else:
                then(outcome)

        call(self._owner.guarded(answered))
