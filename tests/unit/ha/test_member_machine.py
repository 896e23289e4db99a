"""When a member starts, waits and is refused: decisions without processes."""

from __future__ import annotations

from dgpu.entry.ha.member_machine import LONGEST_DELAY_S, QUICK_S, MemberMachine, Places, Refuse, Start, Wait

PLACES = Places(me="a:9379", data="/d/engine/data", tls="/d/engine/tls")


def machine() -> MemberMachine:
    return MemberMachine(PLACES)


def after_end(it: MemberMachine, at_s: float, ran_s: float = 1, log_end: str = ""):
    it.on_ended(at_s, ran_s=ran_s, log_end=log_end)
    return it.next(at_s, once_started=True, has_data=True)


def test_a_new_member_starts_at_once_with_an_empty_directory() -> None:
    assert machine().next(5, once_started=False, has_data=False) == Start()


def test_a_member_with_its_data_starts_at_once() -> None:
    assert machine().next(5, once_started=True, has_data=True) == Start()


def test_an_emptied_directory_is_refused_and_the_action_is_named() -> None:
    """It would vote as if it had confirmed nothing."""
    decision = machine().next(5, once_started=True, has_data=False)
    assert isinstance(decision, Refuse)
    assert "dgpu ha replace-member a:9379" in decision.why


def test_a_refusal_stays_even_if_the_data_come_back_meanwhile() -> None:
    """An older copy of the data forgets as well."""
    it = machine()
    it.next(5, once_started=True, has_data=False)
    assert isinstance(it.next(6, once_started=True, has_data=True), Refuse)


def test_quick_deaths_wait_twice_as_long_each_time_up_to_a_bound() -> None:
    it, delays = machine(), []
    for _ in range(12):
        decision = after_end(it, 100)
        assert isinstance(decision, Wait)
        delays.append(decision.seconds)
    assert delays[:4] == [0.25, 0.5, 1, 2]
    assert delays[-1] == LONGEST_DELAY_S


def test_it_never_gives_up() -> None:
    """The other machines may be gone for days; the member must be there when they return."""
    it = machine()
    for _ in range(5_000):
        after_end(it, 100)
    assert it.next(100 + LONGEST_DELAY_S, once_started=True, has_data=True) == Start()


def test_a_long_life_forgets_earlier_deaths() -> None:
    it = machine()
    for _ in range(8):
        after_end(it, 100)
    assert after_end(it, 500, ran_s=QUICK_S + 1) == Wait(0.25)


def test_a_removed_member_is_refused_by_name() -> None:
    line = '{"level":"warn","msg":"the member has been permanently removed from the cluster"}'
    decision = after_end(machine(), 100, log_end=line)
    assert isinstance(decision, Refuse)
    assert "removed" in decision.why
    assert "dgpu ha join" in decision.why


def test_damaged_data_are_refused_by_name() -> None:
    decision = after_end(machine(), 100, log_end="panic: wal: crc mismatch")
    assert isinstance(decision, Refuse)
    assert "dgpu ha replace-member a:9379" in decision.why
