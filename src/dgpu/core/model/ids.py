"""Identifiers. Numbers come from counters in the state and are never reused."""

from typing import Final, NewType

TaskId = NewType("TaskId", int)
LeaseId = NewType("LeaseId", int)  # the fence: a report on any other lease of a task is stale
ShapeId = NewType("ShapeId", int)
NodeId = NewType("NodeId", str)
GpuId = NewType("GpuId", str)  # the UUID of the GPU: indexes shift when a GPU fails
TenantId = NewType("TenantId", str)
TokenId = NewType("TokenId", str)
SecretId = NewType("SecretId", str)  # tenant/name

NO_LEASE: Final = LeaseId(0)
NO_TASK: Final = TaskId(0)

# A lease id holds the epoch that granted it above a counter. It stays below 2^53, the largest integer that a browser
# holds exactly, so there are 2^21 epochs of 2^32 leases each.
LEASE_BITS: Final = 32
MAX_EPOCH: Final = (1 << 21) - 1

_PREFIX: Final = "task-"
_MAX_DIGITS: Final = 18


def first_lease_of(epoch: int) -> LeaseId:
    return LeaseId((epoch << LEASE_BITS) + 1)


def epoch_of(lease_id: LeaseId) -> int:
    return lease_id >> LEASE_BITS


def task_name(task_id: TaskId) -> str:
    return f"{_PREFIX}{task_id}"


def parse_task_id(text: str) -> TaskId | None:
    """`task-42` or `42`; None for anything else."""
    digits = text.removeprefix(_PREFIX)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
        return None
    return TaskId(int(digits)) if int(digits) > 0 else None
