"""Idempotency keys are bounded, and none younger than an hour is forgotten."""

from __future__ import annotations

import pytest

from building import START, cluster, do, task, tried
from dgpu.core.commands import Tick
from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.core.model.idempotency import MIN_KEY_AGE_MS, KeyRing, pack
from dgpu.core.model.settings import Settings
from dgpu.core.rejections import AlreadySubmitted, TooManyKeys

BOUNDS = Settings(max_keys=40, max_tenant_keys=24)
LATER = START + MIN_KEY_AGE_MS


def submit(state, tenant: str, number: int, at: int = START):
    key = f"{tenant}/{number}"
    return tried(state, task(key=key, fingerprint=key), at=at)


def test_beyond_a_tenants_bound_submits_with_a_key_are_refused_and_others_are_not() -> None:
    state = cluster(settings=BOUNDS)
    for number in range(24):
        assert isinstance(submit(state, "lab", number), tuple)
    assert submit(state, "lab", 24) == TooManyKeys(tenant_id="lab", known=24, limit=24)
    assert isinstance(submit(state, "team", 1), tuple)
    assert isinstance(tried(state, task()), tuple)
    assert isinstance(submit(state, "lab", 3), AlreadySubmitted)


def test_all_tenants_together_have_a_bound() -> None:
    state = cluster(settings=BOUNDS)
    for number in range(40):
        assert isinstance(submit(state, f"t{number}", 1), tuple)
    assert submit(state, "one-more", 1) == TooManyKeys(tenant_id="", known=40, limit=40)


def test_no_key_younger_than_an_hour_is_forgotten() -> None:
    state = cluster(settings=BOUNDS)
    for number in range(24):
        submit(state, "lab", number, at=START + number)
    do(state, Tick(), at=LATER - 1)
    assert state.key_ring.count == 24


def test_near_its_bound_the_oldest_keys_of_a_tenant_go_after_an_hour_and_no_others() -> None:
    state = cluster(settings=BOUNDS)
    submit(state, "team", 1)
    for number in range(24):
        submit(state, "lab", number, at=START + number)
    do(state, Tick(), at=LATER + 100)
    assert state.key_ring.count_of("lab") == 21
    assert state.key_ring.find("lab/2") is None
    assert state.key_ring.find("lab/3") is not None
    assert state.key_ring.find("team/1") is not None
    assert isinstance(submit(state, "lab", 24, at=LATER + 100), tuple)
    check_invariants(state)


def test_near_the_bound_of_all_the_oldest_go_after_an_hour() -> None:
    state = cluster(settings=BOUNDS)
    for number in range(40):
        submit(state, f"t{number}", 1, at=START + number)
    do(state, Tick(), at=LATER + 100)
    assert state.key_ring.count == 35
    assert state.key_ring.find("t4/1") is None
    assert state.key_ring.find("t5/1") is not None


def test_a_few_keys_live_their_whole_day() -> None:
    state = cluster(settings=BOUNDS)
    submit(state, "lab", 1)
    do(state, Tick(), at=START + 86_400_000 - 1)
    assert isinstance(submit(state, "lab", 1, at=START + 86_400_000 - 1), AlreadySubmitted)


def test_the_digest_sees_keys_and_not_their_order() -> None:
    def ring(*numbers: int) -> KeyRing:
        made = KeyRing()
        for number in numbers:
            made.add(pack(f"lab/{number}", first_id=number, count=1, at=5, fingerprint="f"))
        return made

    state, twin = cluster(), cluster()
    state.key_ring, twin.key_ring = ring(1, 2), ring(2, 1)
    assert digest(state) == digest(twin)
    twin.key_ring = ring(1, 3)
    assert digest(state) != digest(twin)
    state.key_ring.forget(6)
    assert (state.key_ring.count, state.key_ring.mark) == (0, 0)


def test_a_fork_has_keys_of_its_own() -> None:
    state = cluster(settings=BOUNDS)
    submit(state, "lab", 1)
    fork = state.fork()
    submit(fork, "lab", 2)
    assert state.key_ring.find("lab/2") is None
    assert fork.key_ring.find("lab/1") is not None
    late = state.fork()
    late.key_ring.forget(state.last_at + 1)
    assert (late.key_ring.count, state.key_ring.count) == (0, 1)
    assert state.key_ring.find("lab/1") is not None


@pytest.mark.parametrize(("first_id", "count"), [(1, 1), (2**40, 10_000)])
def test_a_packed_key_gives_back_what_was_packed(first_id: int, count: int) -> None:
    ring = KeyRing()
    ring.add(pack("lab/a/b", first_id=first_id, count=count, at=START, fingerprint="x"))
    known = ring.find("lab/a/b")
    assert known is not None
    assert (known.first_id, known.count, known.created_at) == (first_id, count, START)
    assert ring.count_of("lab") == 1
