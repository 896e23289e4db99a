"""An agent that sends anything the protocol allows: the scheduler stays whole, and other nodes notice nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dgpu.core.invariants import check_invariants
from dgpu.service.machine.outputs import Remark, ReplyFailed
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import Bench, heartbeat, register, submit, told

WORDS = (
    "",
    "n1",
    "n2",
    "GPU-n1-0",
    "boot-1",
    "s",
    "task-1",
    "x" * 5_000,
    "\x00",
    "\u202e",
    "../..",
    "{}",
    "🦊",
)
NUMBERS = (0, 1, 2, 7, 8_000, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, -1, -(2**31), -(2**63))
MAX_REPEATED = 3


def fuzzed(kind: type[Message], chance: random.Random, depth: int = 0) -> Message:
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.4 or depth > 4:
            continue
        try:
            _fill(message, field, chance, depth)
        except (ValueError, TypeError):
            continue  # the protocol has no such value
    return message


def _fill(message: Message, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        getattr(message, field.name)[chance.choice(WORDS)] = chance.choice(WORDS)
    elif field.is_repeated:
        values = [_value(message, field, chance, depth) for _ in range(chance.randrange(MAX_REPEATED + 1))]
        getattr(message, field.name).extend(values)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(_value(message, field, chance, depth))
    else:
        setattr(message, field.name, _value(message, field, chance, depth))


def _value(message: Message, field: FieldDescriptor, chance: random.Random, depth: int) -> Any:
    if field.message_type is not None:
        return fuzzed(field.message_type._concrete_class, chance, depth + 1)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 40)))
        case FieldDescriptor.CPPTYPE_STRING:
            return chance.choice(WORDS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice([*field.enum_type.values_by_number, 99])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return chance.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
    return chance.choice(NUMBERS)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_an_agent_sends_the_scheduler_stays_whole(seed: int) -> None:
    """An uncaught error in the machine would end the scheduler for everybody."""
    chance = random.Random(seed)
    bench = Bench()
    bench.say(1, register("n1"))
    bench.run(submit(2))
    for step in range(40):
        connection = chance.randrange(1, 5)
        outputs = bench.say(connection, fuzzed(pb.FromAgent, chance))
        outputs += bench.settle()
        failed = [each for each in outputs if isinstance(each, ReplyFailed) or _is_failure(each)]
        assert failed == [], f"seed {seed}, step {step}"
        bench.now += 1_000
    check_invariants(bench.state)
    bench.say(9, register("n9"))
    assert told(bench.say(9, heartbeat(1)))[-1].WhichOneof("body") == "heartbeat_ack"


def _is_failure(output: object) -> bool:
    return isinstance(output, Remark) and output.event == "command_failed"


def test_the_fuzz_reaches_every_kind_of_message() -> None:
    """Otherwise the test above would say little."""
    chance = random.Random(1)
    seen = {fuzzed(pb.FromAgent, chance).WhichOneof("body") for _ in range(500)}
    assert seen >= {field.name for field in pb.FromAgent.DESCRIPTOR.oneofs_by_name["body"].fields}
