"""When a node may delete its copy of a run's output."""

from __future__ import annotations

import pytest

from dgpu.core.model.ids import LeaseId
from dgpu.service.copies import release as release_module
from dgpu.service.copies.release import LONE_AFTER_S, Freed, Release

RUN, OTHER = LeaseId(1), LeaseId(2)
FREED = [Freed(RUN, 7)]


@pytest.fixture
def release() -> Release[LeaseId]:
    return Release(0.0)


def test_a_run_waits_until_a_standby_has_it(release) -> None:
    assert release.on_heard("b", (), 1.0) == []
    assert not release.on_durable(RUN, 7, 2.0)
    assert release.on_heard("b", (OTHER,), 3.0) == []
    assert release.on_heard("b", (RUN,), 4.0) == FREED
    assert (release.waiting, release.one_copy) == (0, 0)


def test_a_run_waits_for_every_standby_in_contact(release) -> None:
    """Either of them may be the next master."""
    release.on_heard("b", (), 1.0)
    release.on_heard("c", (), 1.0)
    release.on_durable(RUN, 7, 2.0)
    assert release.on_heard("b", (RUN,), 3.0) == []
    assert release.on_heard("c", (RUN,), 3.0) == FREED


def test_a_standby_that_left_is_not_waited_for_for_ever(release) -> None:
    release.on_heard("b", (), 1.0)
    release.on_heard("c", (), 1.0)
    release.on_durable(RUN, 7, 2.0)
    release.on_heard("b", (RUN,), 3.0)
    assert release.on_time(LONE_AFTER_S) == []
    assert release.on_time(1.0 + LONE_AFTER_S) == FREED
    assert release.one_copy == 0


def test_a_master_without_a_standby_waits_two_minutes_and_says_that_there_is_one_copy(release) -> None:
    assert not release.on_durable(RUN, 7, 1.0)
    assert release.on_time(LONE_AFTER_S - 1) == []
    assert release.on_time(LONE_AFTER_S) == FREED
    assert release.on_durable(OTHER, 8, LONE_AFTER_S)
    assert release.one_copy == 2


def test_a_standby_that_has_everything_ends_the_report_of_one_copy(release) -> None:
    release.on_durable(RUN, 7, LONE_AFTER_S)
    release.on_heard("b", (), LONE_AFTER_S + 1)
    assert release.one_copy == 1
    release.on_heard("b", (), LONE_AFTER_S + 2, is_whole=True)
    assert release.one_copy == 0
    assert not release.on_durable(OTHER, 8, LONE_AFTER_S + 3)


def test_the_number_of_waiting_runs_is_bounded(release, monkeypatch) -> None:
    monkeypatch.setattr(release_module, "MAX_WAITING", 1)
    assert not release.on_durable(RUN, 7, 1.0)
    assert release.on_durable(OTHER, 8, 1.0)
    assert (release.waiting, release.one_copy) == (1, 1)
