"""Master and standby compare the fingerprints of their states."""

from __future__ import annotations

from dgpu.journal.engine import StateDigest, Term
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.service.leadership.digests import Digests
from engine_contract import elected


class One:
    def __init__(self, engine: MemoryEngine, term: Term | None = None) -> None:
        self.own: StateDigest | None = None
        self.digests = Digests(engine, own=lambda: self.own, term=lambda: term, differs=lambda _: None)

    def look(self, index: int, digest: str) -> str | None:
        self.own = StateDigest(index, digest)
        return self.digests.look()


def test_equal_states_say_nothing() -> None:
    engine = MemoryEngine()
    master, standby = One(engine, elected(engine)), One(engine)
    assert standby.digests.look() is None
    assert standby.look(10_000, "same") is None
    assert master.look(10_000, "same") is None
    assert engine.digest() == StateDigest(10_000, "same")
    assert standby.look(10_000, "same") is None


def test_another_state_is_told_by_name() -> None:
    """Also if the master publishes its own later."""
    engine = MemoryEngine()
    master, standby = One(engine, elected(engine)), One(engine)
    assert standby.look(10_000, "other") is None
    master.look(10_000, "right")
    why = standby.look(10_000, "other")
    assert why is not None
    assert "after group 10000, this standby has the state other, the master right" in why


def test_a_standby_that_is_behind_compares_only_the_same_group() -> None:
    engine = MemoryEngine()
    master, standby = One(engine, elected(engine)), One(engine)
    master.look(20_000, "later")
    assert standby.look(10_000, "earlier") is None
    assert standby.look(20_000, "later") is None


def test_a_silent_engine_is_asked_again() -> None:
    engine = MemoryEngine()
    term = elected(engine)
    master = One(engine, term)
    engine.is_down = True
    assert master.look(10_000, "state") is None
    engine.is_down = False
    master.digests.look()
    assert engine.digest() == StateDigest(10_000, "state")
