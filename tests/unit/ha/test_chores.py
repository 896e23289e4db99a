"""Which machine does which chore of a managed engine."""

from __future__ import annotations

from dgpu.entry.ha.chores import Defragment, MakeRoom, Promote, next_chore
from dgpu.entry.ha.engine_cluster import MemberState

GIB = 1 << 30


def state(address: str, **fields) -> MemberState:
    return MemberState(address=address, id=ord(address), **{"db_bytes": GIB, "used_bytes": GIB, **fields})


def test_a_learner_asks_for_its_own_vote() -> None:
    states = [state("a", is_leader=True), state("c", is_learner=True)]
    assert next_chore(states, "c") == Promote(ord("c"))
    assert next_chore(states, "a") is None


def test_a_member_is_defragmented_by_the_leader_only() -> None:
    states = [state("a", is_leader=True), state("b", used_bytes=GIB // 4), state("c")]
    assert next_chore(states, "a") == Defragment("b")
    assert next_chore(states, "b") is None
    assert next_chore(states, "c") is None


def test_the_leader_is_defragmented_last() -> None:
    """Its turn costs an election."""
    states = [state("a", is_leader=True, used_bytes=1), state("b"), state("c", used_bytes=1)]
    assert next_chore(states, "a") == Defragment("c")
    assert next_chore([states[0], states[1], state("c")], "a") == Defragment("a")


def test_no_member_is_defragmented_while_another_one_is_silent() -> None:
    """It stops answering meanwhile, and then no majority would be left."""
    states = [state("a", is_leader=True), state("b", used_bytes=1), MemberState(address="c", trouble="gone")]
    assert next_chore(states, "a") is None


def test_small_files_are_left_alone() -> None:
    small = state("b", db_bytes=100 << 20, used_bytes=1)
    assert next_chore([state("a", is_leader=True), small, state("c")], "a") is None


def test_a_full_engine_gets_room_first_even_if_a_member_is_silent() -> None:
    full = state("b", alarms=("memberID:98 alarm:NOSPACE ",))
    silent = MemberState(address="c", trouble="gone")
    assert next_chore([state("a", is_leader=True), full, silent], "a") == MakeRoom()


def test_a_member_that_does_not_answer_does_nothing() -> None:
    assert next_chore([MemberState(address="a", trouble="gone")], "a") is None
    assert next_chore([], "a") is None
