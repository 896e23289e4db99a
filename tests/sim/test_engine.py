"""The simulated engine: linearisable under its faults, and every fault really happens."""

from __future__ import annotations

from typing import Any

import pytest

from dgpu.journal.engine import Candidate, EngineError, EngineUnavailable, FenceLost, Head, Term, extended
from dgpu.sim.engine import SimEngine
from dgpu.sim.world import World

SEEDS = range(60)


class Writer:
    """A leader that follows the rules: one commit at a time, the same one again until it is decided."""

    def __init__(self, world: World, engine: SimEngine, name: str, *, careless: bool = False) -> None:
        self._world = world
        self._client = engine.client(name)
        self._name = name
        self._careless = careless  # takes an unknown outcome for a failure
        self._term: Term | None = None
        self._head = Head()
        self._written = 0
        self.acknowledged: dict[int, bytes] = {}
        self.fences: list[int] = []
        self._campaign()

    def _campaign(self) -> None:
        me = Candidate(name=self._name, http="", grpc="", nonce="")
        self._client.campaign(me, self._world.now, self._on_campaign)

    def _on_campaign(self, outcome: Any) -> None:
        if isinstance(outcome, Term):
            self._term = outcome
            self.fences.append(outcome.fence)
            self._renew(outcome)
            self._read_head(outcome)
        else:
            self._world.after(self._world.between(100, 1_000), self._campaign)

    def _renew(self, term: Term) -> None:
        if term is self._term:
            self._client.renew(term, lambda _: None)
            self._world.after(1_000, lambda: self._renew(term))

    def _read_head(self, term: Term) -> None:
        def got(outcome: Any) -> None:
            if isinstance(outcome, Head):
                self._head = outcome
                self._write(term)
            elif term is self._term:
                self._read_head(term)

        self._client.head(got)

    def _write(self, term: Term) -> None:
        self._written += 1
        self._send(term, self._head, f"{self._name} {term.fence} {self._written}".encode())

    def _send(self, term: Term, before: Head, record: bytes) -> None:
        def decided(outcome: Any) -> None:
            if isinstance(outcome, Head):
                self.acknowledged[outcome.index] = record
                self._head = outcome
                self._world.after(self._world.between(0, 50), lambda: self._write(term))
            elif isinstance(outcome, EngineUnavailable) and self._careless:
                self._write(term)
            elif isinstance(outcome, EngineUnavailable):
                self._send(term, before, record)
            else:
                assert isinstance(outcome, FenceLost)
                self._term = None
                self._world.after(self._world.between(0, 1_000), self._campaign)

        self._client.commit(term, before, before.index + 1, 1, record, decided)


def world_with_faults(seed: int, **options: bool) -> tuple[SimEngine, list[Writer]]:
    world = World(seed)
    engine = SimEngine(world)
    watch_fences(world, engine)
    writers = [Writer(world, engine, name, **options) for name in ("a", "b")]
    faults = [
        lambda: engine.lose_majority(world.between(100, 20_000)),
        lambda: engine.slow_down(world.between(100, 20_000)),
        lambda: engine.lose_messages(world.between(100, 20_000)),
        lambda: engine.answer_renewals_from_memory(world.between(100, 20_000)),
        engine.revoke_early,
        lambda: engine.cut_off(world.chance.choice(("a", "b"))),
        engine.heal,
    ]
    for _ in range(20):
        world.after(world.between(0, 100_000), world.chance.choice(faults))
    world.run_until(120_000)
    return engine, writers


def watch_fences(world: World, engine: SimEngine) -> None:
    """Only the leader of the moment extends the journal, however late its request arrives."""
    commit = engine.state.commit

    def watched(term: Term, *args: Any) -> Head:
        before = engine.state.head
        head = commit(term, *args)
        leader = engine.state.leader(world.now)
        assert head == before or (leader is not None and leader.fence == term.fence), f"seed {world.seed}"
        return head

    engine.state.commit = watched


def check_journal(engine: SimEngine, writers: list[Writer]) -> None:
    chain = b""
    stored = {}
    for index in range(1, engine.state.head.index + 1):
        record = engine.state.records(index, index)[0]
        chain = extended(chain, record)
        stored[index] = record
    assert chain == engine.state.head.chain
    assert len(set(stored.values())) == len(stored), "a record was stored twice"
    fences = [fence for writer in writers for fence in writer.fences]
    assert len(set(fences)) == len(fences)
    for writer in writers:
        for index, record in writer.acknowledged.items():
            assert stored[index] == record, "an acknowledged record was lost"


def test_nothing_acknowledged_is_lost_under_faults() -> None:
    late = lost = groups = 0
    for seed in SEEDS:
        print(f"seed {seed}")
        engine, writers = world_with_faults(seed)
        check_journal(engine, writers)
        late, lost, groups = late + engine.applied_late, lost + engine.lost, groups + engine.state.head.index
    assert late > 20
    assert lost > 100
    assert groups > 1_000


def test_a_writer_that_takes_an_unknown_outcome_for_a_failure_is_stopped_by_the_head() -> None:
    """The comparison of the head keeps the journal whole even then: the writer finds that the head moved."""
    for seed in SEEDS:
        engine, writers = world_with_faults(seed, careless=True)
        check_journal(engine, writers)


def test_equal_seeds_give_equal_worlds() -> None:
    assert world_with_faults(7)[0].state.head == world_with_faults(7)[0].state.head
    assert world_with_faults(7)[0].state.head != world_with_faults(8)[0].state.head


def elected(world: World, engine: SimEngine, name: str = "a") -> Term:
    found: list[Any] = []
    engine.client(name).campaign(Candidate(name=name, http="", grpc="", nonce=""), world.now, found.append)
    world.run_until(world.now + 10)
    assert isinstance(found[0], Term)
    return found[0]


def test_a_renewal_from_memory_succeeds_and_extends_nothing() -> None:
    world = World(1)
    engine = SimEngine(world)
    term = elected(world, engine)
    engine.answer_renewals_from_memory(60_000)
    answers: list[Any] = []
    for at in range(1_000, 6_000, 1_000):
        world.at(at, lambda: engine.client("a").renew(term, answers.append))
    world.run_until(8_000)
    assert answers == [None] * 5
    engine.client("a").confirm(term, answers.append)
    world.run_until(9_000)
    assert isinstance(answers[-1], FenceLost)


def test_a_lease_outlives_a_lost_majority() -> None:
    """Without a majority no lease ends, and the next leader of the engine gives each its whole time again."""
    world = World(1)
    engine = SimEngine(world)
    term = elected(world, engine)
    engine.lose_majority(60_000)
    world.run_until(60_020)
    answers: list[Any] = []
    engine.client("a").confirm(term, answers.append)
    world.run_until(60_100)
    assert answers == [None]


def test_hints_can_be_lost() -> None:
    world = World(1)
    engine = SimEngine(world)
    hints: list[int] = []
    engine.client("b").watch(lambda: hints.append(world.now))
    term = elected(world, engine)
    assert len(hints) == 1
    engine.lose_hints(1_000)
    engine.client("a").commit(term, Head(), 1, 1, b"one", lambda _: None)
    world.run_until(world.now + 500)
    assert len(hints) == 1


@pytest.mark.parametrize("fault", ["cut_off", "lose_majority"])
def test_without_an_engine_a_call_ends_at_its_timeout(fault) -> None:
    world = World(1)
    engine = SimEngine(world)
    if fault == "cut_off":
        engine.cut_off("a")
    else:
        engine.lose_majority(60_000)
    answers: list[Any] = []
    engine.client("a").head(answers.append)
    world.run_until(2_999)
    assert answers == []
    world.run_until(3_000)
    assert isinstance(answers[0], EngineError)
