"""Idempotency keys: a repeated request gets the answer of the first one.

A million submits a day leave a million keys, in the scheduler and in the follower. A key is therefore kept as two short
byte strings: 15 bytes of a hash of the key, and 31 bytes with the first id, the count, the time and a hash of the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from dgpu.core.model.ids import TaskId

HASH_BYTES: Final = 15  # together with Python's own 33 bytes a multiple of 16
_ID_BYTES: Final = 6
_COUNT_BYTES: Final = 4
_AT_BYTES: Final = 6
_AT_PLACE: Final = _ID_BYTES + _COUNT_BYTES
_HASH_PLACE: Final = _AT_PLACE + _AT_BYTES
_MARK_BITS: Final = 512

MIN_KEY_AGE_MS: Final = 3_600_000  # a younger key is never dropped early


class IdempotencyKey(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """The form in snapshots of earlier versions."""

    first_id: TaskId
    count: int
    created_at: int
    fingerprint: str = ""


class KnownKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    first_id: TaskId
    count: int
    created_at: int
    body_hash: bytes


class PackedKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of a key file."""

    tenant: str
    key_hash: bytes
    value: bytes


class KeyRing:
    """The keys of each tenant, oldest first."""

    __slots__ = ("_is_borrowed", "by_tenant", "count", "mark", "oldest_at")

    def __init__(self) -> None:
        self.by_tenant: dict[str, dict[bytes, bytes]] = {}
        self.count = 0
        self.mark = 0  # the sum of all keys and values: equal rings have equal marks
        self.oldest_at = 0  # no key is older; only meaningful with a count
        self._is_borrowed = False

    def find(self, key: str) -> KnownKey | None:
        keys = self.by_tenant.get(tenant_of(key))
        value = None if keys is None else keys.get(_hash(key))
        return None if value is None else unpack(value)

    def count_of(self, tenant: str) -> int:
        keys = self.by_tenant.get(tenant)
        return 0 if keys is None else len(keys)

    def add(self, packed: PackedKey) -> None:
        """An expired key that is still stored moves to the end: keys are sorted by age."""
        self.detach()
        keys = self.by_tenant.setdefault(packed.tenant, {})
        known = keys.pop(packed.key_hash, None)
        if known is not None:
            self._count_out(packed.key_hash, known)
        if self.count == 0:
            self.oldest_at = created_at(packed.value)
        keys[packed.key_hash] = packed.value
        self.count += 1
        self.mark = (self.mark + _number(packed.key_hash, packed.value)) & ((1 << _MARK_BITS) - 1)

    def add_all(self, packed: Iterable[PackedKey], oldest: dict[str, int]) -> None:
        """Adds the keys of each tenant that are not older than its oldest. Keys of other tenants are skipped."""
        for each in packed:
            floor = oldest.get(each.tenant)
            if floor is not None and created_at(each.value) >= floor:
                self.add(each)

    def forget(self, before: int, tenant: str = "") -> None:
        """Drops all keys created before this time; with `tenant`, only keys of this tenant."""
        self.detach()
        for name in [tenant] if tenant else list(self.by_tenant):
            keys = self.by_tenant.get(name)
            if keys is None:
                continue
            old: list[bytes] = []
            for key_hash, value in keys.items():
                if created_at(value) >= before:
                    break
                old.append(key_hash)
            for key_hash in old:
                self._count_out(key_hash, keys.pop(key_hash))
            if not keys:
                del self.by_tenant[name]
        self.oldest_at = min((_first_at(keys) for keys in self.by_tenant.values()), default=0)

    def oldest(self, before: int, limit: int, tenant: str = "") -> list[int]:
        """The times of the oldest keys created before this time, at most `limit` per tenant, in order."""
        found: list[int] = []
        for name in [tenant] if tenant else list(self.by_tenant):
            for value in islice(self.by_tenant.get(name, {}).values(), limit):
                at = created_at(value)
                if at >= before:
                    break
                found.append(at)
        found.sort()
        return found

    def packed(self) -> Iterator[PackedKey]:
        for tenant, keys in self.by_tenant.items():
            for key_hash, value in keys.items():
                yield PackedKey(tenant, key_hash, value)

    def copy(self) -> KeyRing:
        """A cheap copy for forks: the keys are copied only when the copy changes."""
        twin = KeyRing()
        twin.by_tenant, twin.count, twin.mark, twin.oldest_at = (
            self.by_tenant,
            self.count,
            self.mark,
            self.oldest_at,
        )
        twin._is_borrowed = True
        return twin

    def detach(self) -> None:
        """A copy has its own keys from now on, so that another thread may read it."""
        if self._is_borrowed:
            self.by_tenant = {tenant: keys.copy() for tenant, keys in self.by_tenant.items()}
            self._is_borrowed = False

    def _count_out(self, key_hash: bytes, value: bytes) -> None:
        self.count -= 1
        self.mark = (self.mark - _number(key_hash, value)) & ((1 << _MARK_BITS) - 1)


def pack(key: str, *, first_id: int, count: int, at: int, fingerprint: str) -> PackedKey:
    value = b"".join(
        (
            first_id.to_bytes(_ID_BYTES, "big"),
            count.to_bytes(_COUNT_BYTES, "big"),
            at.to_bytes(_AT_BYTES, "big"),
            _hash(fingerprint),
        )
    )
    return PackedKey(tenant_of(key), _hash(key), value)


def unpack(value: bytes) -> KnownKey:
    return KnownKey(
        first_id=TaskId(int.from_bytes(value[:_ID_BYTES], "big")),
        count=int.from_bytes(value[_ID_BYTES:_AT_PLACE], "big"),
        created_at=created_at(value),
        body_hash=value[_HASH_PLACE:],
    )


def created_at(value: bytes) -> int:
    return int.from_bytes(value[_AT_PLACE:_HASH_PLACE], "big")


def is_same_body(known: KnownKey, fingerprint: str) -> bool:
    return known.body_hash == _hash(fingerprint)


def tenant_of(key: str) -> str:
    """Keys are `tenant/key`: a tenant cannot discover or use a key of another tenant."""
    tenant, slash, _ = key.partition("/")
    return tenant if slash else ""


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def _number(key_hash: bytes, value: bytes) -> int:
    return int.from_bytes(key_hash + value, "big")


def _first_at(keys: dict[bytes, bytes]) -> int:
    for value in keys.values():
        return created_at(value)
    return 0
