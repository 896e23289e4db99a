"""Which connections stay: another user fills its own share and no more, and the owner always gets in."""

from __future__ import annotations

import random

import pytest

from dgpu.service.open_files import MAX_HTTP_CONNECTIONS, HttpLimits, budget_of, http_limits
from dgpu.service.rest.doors import MIN_IDLE_SECONDS, Doors, Guest, Rank

LIMITS = HttpLimits(total=20, others=15, per_uid=5, per_address=10)
NOW_S = 1_000.0
LATER_S = NOW_S + MIN_IDLE_SECONDS
OWNER, STRANGER, OTHER = ("uid", 1000), ("uid", 65534), ("uid", 1001)


def enter(doors: Doors, key, *, is_owner: bool = False) -> Guest:
    guest = doors.enter(key, NOW_S, is_owner=is_owner).guest
    assert guest is not None
    return guest


def test_a_user_beyond_its_share_takes_the_place_of_its_own_oldest_idle_connection() -> None:
    doors = Doors(LIMITS)
    bystander = enter(doors, OTHER)
    held = [enter(doors, STRANGER) for _ in range(5)]
    doors.busy(held[0])
    doors.idle(held[0], NOW_S)  # now it is the youngest of the idle ones
    entry = doors.enter(STRANGER, LATER_S, is_owner=False)
    assert entry.victim is held[1]
    assert doors.count == 6
    assert not bystander.is_leaving


def test_a_user_that_comes_again_and_again_is_refused() -> None:
    """Opening and closing costs more than refusing. The owner is never asked to wait."""
    doors = Doors(LIMITS)
    held = [enter(doors, STRANGER) for _ in range(5)]
    for _ in range(1_000):
        assert doors.enter(STRANGER, LATER_S - 0.001, is_owner=False).guest is None
    assert doors.enter(STRANGER, LATER_S, is_owner=False).victim is held[0]
    assert (doors.refused, doors.shed) == (1_000, 1)
    for _ in range(LIMITS.total):
        enter(doors, OWNER, is_owner=True)


def test_a_user_whose_share_is_busy_is_refused() -> None:
    doors = Doors(LIMITS)
    for _ in range(5):
        doors.busy(enter(doors, STRANGER))
    assert doors.enter(STRANGER, LATER_S, is_owner=False) == (None, None)
    assert doors.refused == 1
    assert doors.enter(OTHER, LATER_S, is_owner=False).guest is not None


def test_all_others_together_leave_room_for_the_owner() -> None:
    doors = Doors(LIMITS)
    for uid in range(2000, 2010):
        for _ in range(5):
            entry = doors.enter(("uid", uid), LATER_S, is_owner=False)
            if entry.guest is not None:
                doors.busy(entry.guest)  # nothing of them can be shed
    assert doors.count == LIMITS.others
    for _ in range(LIMITS.total - LIMITS.others):
        doors.busy(enter(doors, OWNER, is_owner=True))
    assert doors.enter(OWNER, NOW_S, is_owner=True).guest is None  # all that is open is at work


def test_the_owner_takes_the_place_of_the_oldest_idle_stranger_first() -> None:
    doors = Doors(LIMITS)
    known = enter(doors, ("uid", 2000))
    doors.busy(known)
    known.admitted()
    doors.idle(known, NOW_S)
    strangers = [enter(doors, ("uid", 2001 + number // 5)) for number in range(14)]
    own = [enter(doors, OWNER, is_owner=True) for _ in range(5)]
    victims = [doors.enter(OWNER, NOW_S, is_owner=True).victim for _ in range(16)]
    assert victims == [*strangers, known, own[0]]
    assert doors.count == LIMITS.total


def test_a_newcomer_does_not_displace_a_connection_that_was_admitted() -> None:
    doors = Doors(LIMITS)
    for number in range(LIMITS.others):
        guest = enter(doors, ("uid", 2000 + number))
        doors.busy(guest)
        guest.admitted()
        doors.idle(guest, NOW_S)
    assert doors.enter(STRANGER, LATER_S, is_owner=False).guest is None
    assert doors.enter(OWNER, NOW_S, is_owner=True).guest is not None


def test_places_are_free_again_when_connections_end_in_any_order() -> None:
    """Whatever happens, the counts are those of the connections that are there."""
    doors = Doors(LIMITS)
    choose = random.Random(5)
    here: list[Guest] = []
    for _ in range(5_000):
        what = choose.random()
        if what < 0.5:
            key = choose.choice(
                [OWNER, STRANGER, OTHER, ("address", "10.0.0.1"), ("uid", choose.randint(1, 30))]
            )
            entry = doors.enter(key, choose.uniform(NOW_S, LATER_S), is_owner=key == OWNER)
            if entry.victim is not None:
                here.remove(entry.victim)
                doors.leave(entry.victim)  # as when its transport is closed
            if entry.guest is not None:
                here.append(entry.guest)
        elif here and what < 0.7:
            doors.leave(here.pop(choose.randrange(len(here))))
        elif here:
            guest = choose.choice(here)
            doors.busy(guest)
            if choose.random() < 0.5:
                guest.admitted()
            if choose.random() < 0.7:
                doors.idle(guest, NOW_S)
        assert doors.count == len(here) <= LIMITS.total
        assert doors.idle_count == sum(guest.is_idle for guest in here)
        assert sum(guest.rank is not Rank.OWNER for guest in here) <= LIMITS.others
        assert sum(guest.key == STRANGER for guest in here) <= LIMITS.per_uid
    for guest in here:
        doors.leave(guest)
    assert (doors.count, doors.idle_count, doors._shares) == (0, 0, {})


@pytest.mark.parametrize("files", [64, 256, 1_024, 4_096, 65_536])
def test_connections_never_use_the_files_that_the_scheduler_needs_itself(files) -> None:
    budget = budget_of(files)
    assert budget.reserve + budget.agents + budget.http.total <= files
    assert budget.reserve >= min(256, files // 4)
    assert budget.http.per_uid <= budget.http.others < budget.http.total


def test_a_usual_limit_leaves_hundreds_of_connections() -> None:
    assert budget_of(1_024).http == HttpLimits(total=496, others=372, per_uid=62, per_address=248)
    assert budget_of(65_536).http == http_limits(MAX_HTTP_CONNECTIONS)
