"""Whether a scheduler that took over may lack output that nodes have deleted."""

from __future__ import annotations

import pytest

from dgpu.service.copies.release import LONE_AFTER_S
from dgpu.service.copies.wholeness import Wholeness

LONE_MS = int(LONE_AFTER_S * 1_000)
T = 10_000_000


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def test_a_standby_that_was_in_contact_lacks_nothing(folder) -> None:
    own = Wholeness(folder)
    own.on_compared(T)
    own.on_lead(epoch_before=3, last_at=T + 5_000, epoch=4)
    assert not own.is_doubtful(T)


def test_a_standby_without_contact_may_lack_output_of_that_time(folder) -> None:
    own = Wholeness(folder)
    own.on_compared(T)
    own.on_lead(epoch_before=3, last_at=T + LONE_MS, epoch=4)
    assert own.is_doubtful(T + 1)
    assert not own.is_doubtful(T - LONE_MS * 100)
    assert not own.is_doubtful(T + LONE_MS + 1)  # it leads since then
    assert Wholeness(folder).is_doubtful(T + 1)
    own.on_filled()
    assert not own.is_doubtful(T + 1)
    assert not Wholeness(folder).is_doubtful(T + 1)


def test_a_scheduler_that_led_before_lacks_nothing_however_long_it_was_down(folder) -> None:
    Wholeness(folder).on_lead(epoch_before=0, last_at=0, epoch=1)
    own = Wholeness(folder)
    own.on_lead(epoch_before=1, last_at=T, epoch=2)
    assert not own.is_doubtful(T)


def test_a_damaged_file_means_doubt(folder) -> None:
    Wholeness(folder).on_compared(T)
    (folder / "copied.json").write_text("{")
    own = Wholeness(folder)
    own.on_lead(epoch_before=3, last_at=T, epoch=4)
    assert own.is_doubtful(T)


def test_a_scheduler_that_was_alone_lacks_nothing_when_it_founds_a_cluster(folder) -> None:
    """Logs of its old tasks without output would be "on their way" until a standby joins."""
    Wholeness(folder).on_founded(7)
    own = Wholeness(folder)
    own.on_lead(epoch_before=7, last_at=T, epoch=8)
    assert not own.is_doubtful(T)
