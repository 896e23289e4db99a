"""Stored content: whole or not there, per tenant, bounded, and kept while tasks need it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from dgpu.core.model.ids import TenantId
from dgpu.service.content import store as module
from dgpu.service.content.store import (
    ContentLimits,
    ContentMismatch,
    ContentStore,
    ContentStoreFull,
    ContentTooLarge,
)

LAB, RIVAL = TenantId("lab"), TenantId("rival")
NOTHING = frozenset[tuple[TenantId, str]]()
LIMITS = ContentLimits(max_bytes=1_000, tenant_bytes=2_000, total_bytes=3_000)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(store: ContentStore, content: bytes, tenant: TenantId = LAB, used=NOTHING) -> str:
    arrival = store.begin(tenant, digest(content), len(content), used)
    try:
        arrival.write(content)
        arrival.finish()
    except BaseException:
        arrival.give_up()
        raise
    return digest(content)


def files_in(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def age(store: ContentStore, folder: Path) -> ContentStore:
    """As if all content had been used long ago."""
    for path in folder.glob("tenant-*/*"):
        os.utime(path, (1, 1))
    return ContentStore(folder, store.limits)


def test_content_is_found_by_its_tenant_only_and_survives_a_restart(tmp_path) -> None:
    name = put(ContentStore(tmp_path, LIMITS), b"x" * 10)
    store = ContentStore(tmp_path, LIMITS)
    assert store.find(LAB, name) == 10
    assert store.find(RIVAL, name) is None
    descriptor = store.open(LAB, name)
    assert os.read(descriptor, 100) == b"x" * 10
    os.close(descriptor)
    assert (store.used_bytes(LAB), store.used_bytes(RIVAL)) == (10, 0)


def test_wrong_bytes_leave_nothing(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    arrival = store.begin(LAB, digest(b"a"), 1, NOTHING)
    arrival.write(b"b")
    with pytest.raises(ContentMismatch):
        arrival.finish()
    arrival.give_up()
    assert store.find(LAB, digest(b"a")) is None
    assert not files_in(tmp_path)


def test_an_arrival_that_a_crash_cut_off_is_removed_at_the_next_start(tmp_path) -> None:
    ContentStore(tmp_path, LIMITS).begin(LAB, digest(b"a"), 1, NOTHING).write(b"a")
    assert files_in(tmp_path) == 1
    ContentStore(tmp_path, LIMITS)
    assert not files_in(tmp_path)


def test_more_bytes_than_announced_are_refused(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    with pytest.raises(ContentTooLarge):
        store.begin(LAB, digest(b"a"), 1_001, NOTHING)
    arrival = store.begin(LAB, digest(b"a"), 1, NOTHING)
    with pytest.raises(ContentTooLarge):
        arrival.write(b"aa")
    arrival.give_up()


def test_room_is_made_by_deleting_the_least_recently_used(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    old, new = put(store, b"a" * 900), put(store, b"b" * 900)
    store = age(store, tmp_path)
    store.find(LAB, new)
    third = put(store, b"c" * 900)
    assert [store.find(LAB, each) for each in (old, new, third)] == [None, 900, 900]


def test_content_that_a_task_needs_or_that_was_just_used_is_not_deleted(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    names = [put(store, letter * 900) for letter in (b"a", b"b")]
    with pytest.raises(ContentStoreFull, match="of this tenant use 1,800 of 2,000 bytes"):
        put(store, b"c" * 900)
    store = age(store, tmp_path)
    with pytest.raises(ContentStoreFull, match="of this tenant"):
        put(store, b"c" * 900, used=frozenset((LAB, name) for name in names))
    put(store, b"d" * 900, RIVAL)
    with pytest.raises(ContentStoreFull, match="in total use 2,700 of 3,000 bytes"):
        put(store, b"e" * 900, RIVAL, used=frozenset((LAB, name) for name in names))


def test_two_arrivals_cannot_share_the_last_room(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    first = store.begin(LAB, digest(b"a"), 1_000, NOTHING)
    second = store.begin(LAB, digest(b"b"), 1_000, NOTHING)
    with pytest.raises(ContentStoreFull):
        store.begin(LAB, digest(b"c"), 1, NOTHING)
    second.give_up()
    store.begin(LAB, digest(b"c"), 1, NOTHING).give_up()
    first.give_up()


def test_content_expires_after_its_last_use_unless_a_task_needs_it(tmp_path) -> None:
    store = ContentStore(tmp_path, LIMITS)
    kept, gone = put(store, b"a"), put(store, b"b")
    store = age(store, tmp_path)
    store.expire(frozenset({(LAB, kept)}))
    assert (store.find(LAB, kept), store.find(LAB, gone)) == (1, None)
    store.expire(NOTHING)
    assert store.find(LAB, kept) == 1  # just found, so just used


def test_a_disk_without_room_refuses_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(ContentStoreFull, match="the disk of the scheduler has no room"):
        put(ContentStore(tmp_path, LIMITS), b"a")
    assert not files_in(tmp_path)
