"""The engine in memory keeps the promises of every engine, and fails on request."""

from __future__ import annotations

import pytest

from dgpu.journal.engine import EngineFull, EngineUnavailable, FenceLost, Head
from dgpu.journal.memory_engine import MemoryEngine, SharedState
from engine_contract import EngineContract, candidate, commit, committed, elected


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def connect():
    shared = SharedState(clock=lambda: 0)  # no lease ends
    return lambda: MemoryEngine(shared)


class TestContract(EngineContract):
    pass


def test_a_lease_ends_when_it_is_not_renewed() -> None:
    clock = Clock()
    shared = SharedState(clock=clock)
    engine = MemoryEngine(shared)
    term = elected(engine)
    assert (term.granted_at_ms, term.ttl_ms) == (1_000, 5_000)
    clock.now_ms += 4_999
    engine.renew(term)
    clock.now_ms += 4_999
    engine.confirm(term)
    clock.now_ms += 1
    with pytest.raises(FenceLost):
        engine.confirm(term)
    with pytest.raises(FenceLost):
        engine.renew(term)
    assert engine.leader() is None
    assert MemoryEngine(shared).campaign(candidate("b")) is not None


def test_a_renewal_in_vain_extends_nothing() -> None:
    clock = Clock()
    engine = MemoryEngine(SharedState(clock=clock))
    term = elected(engine)
    engine.renews_in_vain = True
    clock.now_ms += 4_000
    engine.renew(term)
    clock.now_ms += 1_000
    with pytest.raises(FenceLost):
        engine.confirm(term)


def test_a_lost_answer() -> None:
    engine = MemoryEngine()
    term = elected(engine)
    engine.lost_answers = 1
    with pytest.raises(EngineUnavailable):
        commit(engine, term, Head())
    assert commit(engine, term, Head()).index == 1
    assert engine.head().index == 1


def test_an_engine_that_is_down_changes_nothing() -> None:
    engine = MemoryEngine()
    term = elected(engine)
    engine.is_down = True
    with pytest.raises(EngineUnavailable):
        commit(engine, term, Head())
    engine.is_down = False
    assert engine.head() == Head()


def test_a_full_engine_stores_nothing_and_keeps_the_leader() -> None:
    engine = MemoryEngine()
    term = elected(engine)
    head = committed(engine, term, 1)
    engine.shared.state.is_full = True
    with pytest.raises(EngineFull):
        commit(engine, term, head)
    assert engine.health().is_full
    engine.confirm(term)
    engine.shared.state.is_full = False
    assert commit(engine, term, head).index == 2
