"""Equal refusals are counted, so that a flood of guesses fills neither the journal nor the memory."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.model.audit import AuditEntry
from dgpu.service.audit.repeats import MAX_WINDOWS, OTHERS, WINDOW_MS, Repeats

GUESS = AuditEntry(action="task.list", origin="10.0.0.9", status=403, code="wrong_token", subject="task-1")


def test_the_first_is_written_and_the_others_of_its_minute_are_one_entry() -> None:
    repeats = Repeats()
    assert repeats.take(GUESS, 1_000) == GUESS
    assert [repeats.take(GUESS, 1_000 + each) for each in range(9_999)] == [None] * 9_999
    assert repeats.due(1_000 + WINDOW_MS - 1) == []
    (counted,) = repeats.due(1_000 + WINDOW_MS)
    assert (counted.count, counted.since, counted.subject) == (9_999, 1_000, "task-1")


def test_a_flood_that_goes_on_is_one_entry_per_minute() -> None:
    repeats = Repeats()
    written = [repeats.take(GUESS, second * 1_000) for second in range(600)]
    assert len([each for each in written if each]) == 1
    due = []
    for second in range(0, 600, 5):
        repeats.take(GUESS, second * 1_000)
        due += repeats.due(second * 1_000)
    assert 9 <= len(due) <= 10


def test_a_quiet_minute_forgets_the_window() -> None:
    repeats = Repeats()
    repeats.take(GUESS, 0)
    assert repeats.due(WINDOW_MS) == []
    assert repeats.take(GUESS, WINDOW_MS + 1) == GUESS


def test_other_users_actions_and_codes_are_counted_apart() -> None:
    repeats = Repeats()
    others = [
        replace(GUESS, user="ann"),
        replace(GUESS, action="task.change"),
        replace(GUESS, code="too_many_failures"),
        replace(GUESS, origin="10.0.0.8"),
    ]
    assert [repeats.take(each, 0) for each in (GUESS, *others)] == [GUESS, *others]


def test_different_subjects_are_counted_together_without_a_subject() -> None:
    repeats = Repeats()
    for number in range(4):
        repeats.take(replace(GUESS, subject=f"task-{number}"), 0)
    (counted,) = repeats.due(0, also_open=True)
    assert (counted.count, counted.subject) == (3, "")


def test_a_reader_gets_the_count_so_far_and_the_window_goes_on() -> None:
    repeats = Repeats()
    for _ in range(3):
        repeats.take(GUESS, 0)
    assert [each.count for each in repeats.due(0, also_open=True)] == [2]
    assert repeats.take(GUESS, 1) is None
    assert [each.count for each in repeats.due(1, also_open=True)] == [1]


def test_many_origins_share_one_window() -> None:
    """Addresses cost nothing: with IPv6, an attacker has more of them than the scheduler has memory."""
    repeats = Repeats()
    written = [repeats.take(replace(GUESS, origin=f"10.0.{each}.1"), 0) for each in range(5_000)]
    kept = [each for each in written if each is not None]
    assert len(kept) == MAX_WINDOWS + 1
    assert kept[-1].origin == OTHERS
    (counted,) = repeats.due(WINDOW_MS)
    assert (counted.origin, counted.count) == (OTHERS, 5_000 - MAX_WINDOWS - 1)


def test_an_entry_that_could_not_be_written_is_counted() -> None:
    repeats = Repeats()
    repeats.take(GUESS, 0)
    repeats.give_back(GUESS, 5)
    repeats.take(GUESS, 9)
    assert [(each.count, each.since) for each in repeats.due(10, also_open=True)] == [(2, 5)]
