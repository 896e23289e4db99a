"""Keys and values under the prefix.

<prefix>meta                     cluster id and layout
<prefix>leader                   the candidate that leads; bound to its lease, the create revision is the fence
<prefix>head                     index, epoch, chain and fence of the last group
<prefix>floor                    the first index kept, and the chain before it
<prefix>digest                   index and fingerprint of the leader's state
<prefix>keys                     fingerprints of the key files that all schedulers need
<prefix>group/<20 digits>        a group, or the name and number of its parts
<prefix>part/<20 digits>/<fence>-<chain>/<6 digits>
<prefix>snapshot                 a snapshot of the state at or above the floor: index, epoch, chain, parts, hash
<prefix>snapshot/<20 digits>-<fence>/<6 digits>
"""

from __future__ import annotations

import zlib

import msgspec

from dgpu.journal.engine import Head

LAYOUT = 1

_PACKED_FROM_BYTES = 4_096
_encoder = msgspec.msgpack.Encoder()


class Meta(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: str
    layout: int = LAYOUT


class HeadValue(msgspec.Struct, frozen=True, array_like=True):
    index: int
    epoch: int
    chain: bytes
    fence: int  # of the leader that wrote it


class FloorValue(msgspec.Struct, frozen=True, array_like=True):
    index: int
    chain: bytes


class GroupValue(msgspec.Struct, frozen=True, array_like=True):
    chain: bytes
    body: bytes
    is_packed: bool = False
    parts: int = 0  # 0: the body is here
    part_name: str = ""


class Keys:
    def __init__(self, prefix: str) -> None:
        start = prefix.encode()
        self.meta, self.leader, self.head = start + b"meta", start + b"leader", start + b"head"
        self.floor, self._groups, self._parts = start + b"floor", start + b"group/", start + b"part/"
        self.snapshot, self.digest = start + b"snapshot", start + b"digest"
        self.key_prints = start + b"keys"

    def group(self, index: int) -> bytes:
        return self._groups + b"%020d" % index

    def index_of_group(self, key: bytes) -> int:
        return int(key.removeprefix(self._groups))

    def part(self, name: str, number: int) -> bytes:
        return self._parts + name.encode() + b"/%06d" % number

    def parts_of(self, index: int) -> bytes:
        """All parts of groups from this index on have a key behind this one."""
        return self._parts + b"%020d" % index

    @property
    def after_parts(self) -> bytes:
        return self._parts[:-1] + b"0"  # the character behind the slash

    def name_of_part(self, key: bytes) -> str:
        return key.removeprefix(self._parts).rpartition(b"/")[0].decode()

    def snapshot_part(self, index: int, fence: int, number: int) -> bytes:
        return self.snapshot + b"/%020d-%020d/%06d" % (index, fence, number)

    @property
    def snapshot_parts(self) -> tuple[bytes, bytes]:
        """The range of all parts of all snapshots."""
        return self.snapshot + b"/", self.snapshot + b"0"


def part_name(index: int, fence: int, chain: bytes) -> str:
    """The same for a repetition, another one for every other group."""
    return f"{index:020}/{fence:020}-{chain.hex()[:32]}"


def index_and_fence(name: str) -> tuple[int, int]:
    index, _, rest = name.partition("/")
    return int(index), int(rest.partition("-")[0])


def pack(record: bytes) -> tuple[bytes, bool]:
    """Large groups are mostly repeated text. Members write and sync each byte, so packing them is faster."""
    if len(record) < _PACKED_FROM_BYTES:
        return record, False
    packed = zlib.compress(record, 1)
    return (packed, True) if len(packed) < len(record) else (record, False)


def unpack(body: bytes, *, is_packed: bool) -> bytes:
    """Raises zlib.error."""
    return zlib.decompress(body) if is_packed else body


def encode(value: msgspec.Struct) -> bytes:
    return _encoder.encode(value)


def head_of(value: bytes, mod_revision: int) -> Head:
    found = msgspec.msgpack.decode(value, type=HeadValue)
    return Head(index=found.index, epoch=found.epoch, chain=found.chain, revision=mod_revision)
