"""A fingerprint of a state. Equal journals give equal digests on any machine, for any order of the dicts."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from dgpu.core.parts import LATER_PARTS, PART_NAMES
from dgpu.core.state import ClusterState

# JSON, not msgpack: in msgpack the header of a struct changes with the number of its fields, even omitted ones.
_encoder = msgspec.json.Encoder(order="deterministic")
_AT_A_TIME_BYTES: Final = 1 << 16
_AT_THE_END: Final = -1


def digest(state: ClusterState, *, with_keys: bool = True) -> str:
    """sha256 over all parts that are not derived: each part by name, each dict by its sorted keys.

    Idempotency keys count by their number and mark; a snapshot has its own check of them.
    """
    seen = hashlib.sha256()
    buffer = bytearray()
    for name in PART_NAMES:
        part = getattr(state, name)
        if name in LATER_PARTS and part == LATER_PARTS[name]:
            continue  # a part added by a later version does not change the digests of earlier states
        _encoder.encode_into((name, len(part) if isinstance(part, dict) else part), buffer, _AT_THE_END)
        if isinstance(part, dict):
            for key in sorted(part):
                _encoder.encode_into((key, part[key]), buffer, _AT_THE_END)
                if len(buffer) > _AT_A_TIME_BYTES:
                    seen.update(buffer)
                    buffer.clear()
    ring = state.key_ring
    if with_keys and ring.count:
        _encoder.encode_into(("key_ring", ring.count, f"{ring.mark:x}"), buffer, _AT_THE_END)
    seen.update(buffer)
    return seen.hexdigest()
