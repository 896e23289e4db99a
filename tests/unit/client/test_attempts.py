"""Which scheduler a call asks next, and when it gives up."""

from __future__ import annotations

import json

import pytest

from dgpu.client.attempts import (
    CONNECT_SECONDS,
    FIRST_ROUND_SECONDS,
    Answer,
    Attempts,
    Failure,
    Schedulers,
    answer_of,
)
from dgpu.client.errors import NotMaster, Unreachable
from dgpu.client.server import Server

A, B, C = (Server(f"http://{name}:8080", f"token-{name}") for name in "abc")
OK = Answer(200, b"{}", role="master")
FROM_STANDBY = Answer(200, b"{}", role="standby", lag_ms=70)
REFUSED = Failure(ConnectionRefusedError("refused"), was_sent=False)
LOST = Failure(ConnectionResetError("reset"), was_sent=True)


def not_master(master: str = "", retry_after: int = 0) -> Answer:
    body = json.dumps({"code": "not_master", "status": 503, "title": "t", "detail": "d", "master": master})
    return Answer(503, body.encode(), role="standby", asked_seconds=retry_after)


def busy(code: str = "too_busy", retry_after: int = 0) -> Answer:
    return Answer(503, json.dumps({"code": code}).encode(), asked_seconds=retry_after)


def attempts(schedulers: Schedulers, *, is_read: bool = False, **facts) -> Attempts:
    given = {"is_repeatable": True, "retries": 2, "timeout_seconds": 30.0, "now": 0.0} | facts
    return Attempts(schedulers, is_read=is_read, **given)


def schedulers(*servers: Server) -> Schedulers:
    return Schedulers(servers or (A, B))


def test_a_read_moves_to_the_next_address_at_once_and_stays_there() -> None:
    known = schedulers()
    call = attempts(known, is_read=True)
    assert call.next(0).server is A
    assert call.on_failure(REFUSED, 0) == 0.0
    assert call.next(0).server is B
    assert call.on_answer(FROM_STANDBY, 0) is FROM_STANDBY
    assert attempts(known, is_read=True).next(0).server is B
    assert known.answered_by == (B.url, "standby", 70)


def test_a_write_follows_the_name_of_the_master() -> None:
    known = schedulers(A, B, C)
    call = attempts(known)
    assert call.next(0).server is A
    assert call.on_answer(not_master("http://C:8080/"), 0) == 0.0
    assert call.next(0).server is C
    assert call.on_answer(OK, 0) is OK
    assert attempts(known).next(0).server is C
    assert attempts(known, is_read=True).next(0).server is C, "so that a client reads its own writes"


def test_a_write_goes_to_the_master_that_a_header_named() -> None:
    known = schedulers()
    known.on_answer(B, OK)
    known.on_answer(A, FROM_STANDBY)
    assert attempts(known, is_read=True).next(0).server is A
    assert attempts(known).next(0).server is B
    known.on_answer(B, FROM_STANDBY)
    assert attempts(known).next(0).server is B, "the last that answered"
    assert known.master is None


def test_while_no_master_is_elected_a_write_waits_until_its_time_is_over() -> None:
    """`retries` would end it after two rounds, long before a standby takes over."""
    call, now, rounds = attempts(schedulers(), retries=2), 0.0, 0
    with pytest.raises(
        Unreachable, match=r"No master answers: http://a:8080 \(refused\), http://b:8080 \(standby\)"
    ):
        while True:
            assert call.next(now).server is A
            assert call.on_failure(REFUSED, now) == 0.0
            assert call.next(now).server is B
            pause = call.on_answer(not_master(), now)
            assert isinstance(pause, float)
            assert 0 < pause <= 2.0
            now, rounds = now + pause, rounds + 1
    assert 28.0 < now < 30.0
    assert rounds > 10


def test_an_attempt_that_the_end_of_the_call_cuts_short_does_not_hide_an_earlier_reason() -> None:
    call = attempts(schedulers(), timeout_seconds=3.0)
    for now in (0, 2.9):
        call.next(now)
        assert call.on_failure(REFUSED, now) == 0.0
        call.next(now)
        if now == 0:
            assert isinstance(call.on_answer(not_master(), now), float)
    with pytest.raises(Unreachable, match=r"http://b:8080 \(standby\)"):
        call.on_failure(Failure(TimeoutError("timed out"), was_sent=True), 3.0)


def test_without_any_answer_retries_end_it() -> None:
    call, tries = attempts(schedulers(), is_read=True, retries=2), 0
    with pytest.raises(Unreachable) as caught:
        while True:
            call.next(0)
            tries += 1
            call.on_failure(REFUSED, 0)
    assert tries == 6
    assert str(caught.value) == "No scheduler answers: http://a:8080 (refused), http://b:8080 (refused)."
    assert caught.value.__cause__ is REFUSED.error


def test_a_master_that_was_not_given_is_named_and_gets_nothing() -> None:
    call = attempts(schedulers())
    servers = {call.next(0).server}
    call.on_answer(not_master("http://evil:8080"), 0)
    servers.add(call.next(0).server)
    with pytest.raises(NotMaster, match=r"The master is http://evil:8080, which is not one of the given"):
        call.on_answer(not_master("http://evil:8080"), 0)
    assert servers == {A, B}


def test_a_master_that_was_not_given_is_waited_for_while_a_given_address_does_not_answer() -> None:
    """The dead one may be the master under another name; a standby is about to take over."""
    call = attempts(schedulers())
    call.next(0)
    call.on_failure(REFUSED, 0)
    call.next(0)
    assert isinstance(call.on_answer(not_master("http://old:8080"), 0), float)


@pytest.mark.parametrize("master", ["ftp://x", "\x1b[31m", "http://", 5])
def test_a_name_that_is_no_address_counts_as_none(master) -> None:
    call = attempts(schedulers())
    call.next(0)
    call.on_answer(not_master(master), 0)
    call.next(0)
    assert isinstance(call.on_answer(not_master(master), 0), float | Answer)


@pytest.mark.parametrize("is_read", [True, False])
def test_the_pause_that_a_scheduler_asks_for_counts_after_a_whole_round(is_read) -> None:
    call = attempts(schedulers(), is_read=is_read)
    call.next(0)
    assert call.on_answer(busy(retry_after=4), 0) == 0.0
    call.next(0)
    assert call.on_answer(busy(retry_after=3), 0) == 4


@pytest.mark.parametrize("lost", ["not_master", "outcome_unknown"])
def test_a_hand_over_is_done_sooner_than_in_the_second_that_a_standby_asks_for(lost: str) -> None:
    call = attempts(schedulers())
    call.next(0)
    assert call.on_answer(busy(lost, retry_after=1), 0) == 0.0
    call.next(0)
    assert 0 < call.on_answer(not_master(retry_after=1), 0) <= 0.1


def test_a_thing_that_a_standby_does_not_know_is_looked_for_elsewhere() -> None:
    """It may lag behind: the task was submitted a moment ago."""
    unknown = Answer(404, b"{}", role="standby")
    call = attempts(schedulers(), is_read=True)
    call.next(0)
    assert call.on_answer(unknown, 0) == 0.0
    call.next(0)
    assert call.on_answer(OK, 0) is OK
    call = attempts(schedulers(), is_read=True)
    call.next(0)
    call.on_answer(unknown, 0)
    call.next(0)
    assert call.on_failure(REFUSED, 0) is unknown
    alone = attempts(schedulers(A), is_read=True)
    alone.next(0)
    assert alone.on_answer(unknown, 0) is unknown


def test_a_master_does_not_have_to_ask_others_about_a_404() -> None:
    unknown = Answer(404, b"{}", role="master")
    call = attempts(schedulers(), is_read=True)
    call.next(0)
    assert call.on_answer(unknown, 0) is unknown


@pytest.mark.parametrize(
    ("failure", "goes_on"), [(REFUSED, True), (LOST, False)], ids=["not sent", "unknown outcome"]
)
def test_a_call_that_may_not_be_repeated_goes_on_only_if_it_was_not_sent(failure, goes_on) -> None:
    call = attempts(schedulers(), is_repeatable=False)
    call.next(0)
    if goes_on:
        assert call.on_failure(failure, 0) == 0.0
        assert call.next(0).server is B
        return
    with pytest.raises(Unreachable, match="It is not known whether the request was carried out"):
        call.on_failure(failure, 0)


def test_a_call_that_may_not_be_repeated_goes_on_to_the_master() -> None:
    call = attempts(schedulers(), is_repeatable=False)
    call.next(0)
    assert call.on_answer(not_master(B.url), 0) == 0.0
    assert call.next(0).server is B
    busy = Answer(503, b'{"code":"busy"}', role="master")
    assert call.on_answer(busy, 0) is busy


def test_the_busy_answer_of_the_master_is_the_result_not_the_refusal_of_a_standby() -> None:
    call, busy = attempts(schedulers(), retries=0), Answer(503, b'{"code":"too_busy"}', role="master")
    call.next(0)
    assert call.on_answer(busy, 0) == 0.0
    call.next(0)
    assert call.on_answer(not_master(A.url), 29.999) is busy


def test_the_time_of_a_call_is_shared_by_its_schedulers() -> None:
    """One that accepts connections and says nothing leaves time for the others."""
    call = attempts(schedulers(A, B, C), timeout_seconds=30, is_read=True, retries=0)
    first = call.next(0)
    assert (first.timeout_seconds, first.connect_seconds) == (10, CONNECT_SECONDS)
    call.on_failure(LOST, 10)
    assert call.next(10).timeout_seconds == 10
    call.on_failure(LOST, 20)
    assert call.next(20).timeout_seconds == 10
    with pytest.raises(Unreachable):
        call.on_failure(LOST, 30)
    alone = attempts(schedulers(A)).next(0)
    assert (alone.timeout_seconds, alone.connect_seconds) == (30, 30)


def test_a_call_that_may_be_repeated_leaves_a_silent_scheduler_after_a_few_seconds() -> None:
    """A paused master must not cost half of the time. If all are slow, the next round has the time that is left."""
    call = attempts(schedulers(), timeout_seconds=30)
    assert call.next(0).timeout_seconds == FIRST_ROUND_SECONDS
    assert call.on_failure(LOST, 5) == 0.0
    assert call.next(5).timeout_seconds == FIRST_ROUND_SECONDS
    assert call.on_failure(LOST, 10) > 0
    assert call.next(12).timeout_seconds == 9
    assert call.on_failure(LOST, 21) == 0.0
    assert call.next(21).timeout_seconds == 9


@pytest.mark.parametrize("facts", [{"is_repeatable": False}, {"retries": 0}])
def test_a_call_without_another_round_shares_all_of_its_time(facts) -> None:
    assert attempts(schedulers(), timeout_seconds=30, **facts).next(0).timeout_seconds == 15


@pytest.mark.parametrize(("lag", "found"), [("1200", 1200), ("", 0), ("-5", 0), ("²", 0), (None, 0)])
def test_an_odd_age_counts_as_none(lag, found) -> None:
    assert answer_of(200, b"", {"Dgpu-Lag-Ms": lag}.get).lag_ms == found
