"""A commit group as bytes: the payload of one journal record. This is a file format; old records are upcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from dgpu.core import events
from dgpu.core.events import Event
from dgpu.wire.upcast import only_adds_fields, upcast

# 1: the first. 2: cluster ids, nonces and lease ids that contain the epoch. Fields may be added to the present schema
# until it is released; after that they need a new number, so that an older reader refuses the file by name.
SCHEMA = 2

EVENT_TYPES: tuple[type[Event], ...] = (
    events.EpochBegan,
    events.TasksSubmitted,
    events.TaskPlaced,
    events.TaskStarted,
    events.TaskFinished,
    events.TaskRequeued,
    events.TaskCancelRequested,
    events.TasksCancelled,
    events.GangPlaced,
    events.RankEnded,
    events.TasksHeld,
    events.TasksReleased,
    events.PriorityChanged,
    events.TasksForgotten,
    events.KeysForgotten,
    events.NodeRegistered,
    events.InventoryChanged,
    events.NodeLost,
    events.NodeDraining,
    events.NodeResumed,
    events.NodeRemoved,
    events.ObservationChanged,
    events.QuotaChanged,
    events.TenantSet,
    events.TenantRemoved,
    events.UsageCharged,
    events.TaskStopRequested,
    events.GpuHealthChanged,
    events.GpuBlamed,
    events.GpuRunSucceeded,
    events.ConditionChanged,
    events.TypicalChanged,
    events.EstimateLearned,
    events.DemandChanged,
    events.TasksReserved,
    events.WallClockRead,
    events.TokenCreated,
    events.TokenRevoked,
    events.SecretSet,
    events.SecretDeleted,
    events.ServiceSet,
    events.ServiceDeleted,
    events.Resealed,
    events.Audited,
    events.AlertRecordsKept,
    events.AttemptMeasured,
    events.CallReturned,
    events.WorkerChanged,
    events.CallsFailed,
)

_GROUP = list[Union[EVENT_TYPES]]  # type: ignore[valid-type]  # noqa: UP007 - built from the tuple above
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_GROUP)


class UnreadableGroup(ValueError):  # noqa: N818 - it names the thing
    """The bytes are complete, but this version cannot decode them."""


class NewerSchema(UnreadableGroup):
    """A newer version wrote them. Decoding only the known part would lose the rest silently."""


def encode_group(group: Sequence[Event]) -> bytes:
    return _encoder.encode(group)


def join_groups(parts: Sequence[tuple[int, bytes]]) -> bytes:
    """Joins several encoded groups, each with its number of events. Nothing is encoded again."""
    if len(parts) == 1:
        return parts[0][1]
    count = sum(events_count for events_count, _ in parts)
    bodies = [encoded[len(_array_header(events_count)) :] for events_count, encoded in parts]
    return b"".join((_array_header(count), *bodies))


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def decode_group(payload: bytes, schema: int) -> list[Event]:
    if schema > SCHEMA:
        raise NewerSchema(f"written in schema {schema} by a newer version; this one reads up to {SCHEMA}")
    try:
        if only_adds_fields(schema, SCHEMA):
            return _decoder.decode(payload)
        return msgspec.convert(upcast(msgspec.msgpack.decode(payload), schema, SCHEMA), _GROUP)
    except msgspec.DecodeError as error:
        raise UnreadableGroup(f"schema {schema}: {error}") from error
