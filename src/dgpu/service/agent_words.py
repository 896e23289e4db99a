"""Between the messages of agents and the words of the core: checks of what came, building of what goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from dgpu.core.commands import HeldLease, RegisterNode, ReportFinished, ReportStarted
from dgpu.core.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.lease import Lease
from dgpu.core.node import Gpu
from dgpu.core.task import MEMORY_STEP_MB, Outcome, Task
from dgpu.wire.proto import agent_pb2 as pb

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WORD = re.compile(r"[!-~]{1,128}")  # printable ASCII without blanks: uuids, boot and session ids

_MOST_GPUS = 64
_MOST_LEASES = 10_000
_MOST_LABELS = 64
_MOST_TEXT = 256
_MOST_ERROR = 1_000
_MOST_NUMBER = 1 << 40
_MOST_AGO_MS = 30 * 86_400_000

_MOST_ORDERS = 500
_MOST_ORDER_BYTES = 1 << 20


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """The latest raw reading of a GPU. Never seen by the core."""

    at: int
    utilization_percent: int = 0
    memory_used_mb: int = 0
    memory_foreign_mb: int = 0
    temperature_c: int = 0
    power_w: int = 0
    fault: str = ""


class Malformed(Exception):  # noqa: N818 - it names what the message is
    """The message breaks the protocol; the text says how, for the agent's log."""


def line(text: str, most: int = _MOST_TEXT) -> str:
    """One printable line: what agents send ends up in terminals and logs."""
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()


def registration(register: pb.Register) -> RegisterNode:
    if not _NODE_ID.fullmatch(register.node_id):
        raise Malformed("node_id must be 1 to 128 letters, digits, dots, dashes or underscores")
    if not _WORD.fullmatch(register.boot_id) or not _WORD.fullmatch(register.session_id):
        raise Malformed("boot_id and session_id must be 1 to 128 printable characters")
    if len(register.leases) > _MOST_LEASES:
        raise Malformed(f"more than {_MOST_LEASES} leases")
    if len(register.labels) > _MOST_LABELS:
        raise Malformed(f"more than {_MOST_LABELS} labels")
    node_id = NodeId(register.node_id)
    return RegisterNode(
        node_id=node_id,
        boot_id=register.boot_id,
        address=line(register.address),
        agent_version=line(register.agent_version),
        cpus_milli=_number(register.cpus_milli, "cpus_milli"),
        ram_mb=_number(register.ram_mb, "ram_mb"),
        labels={line(key): line(value) for key, value in sorted(register.labels.items())},
        gpus=inventory(node_id, register.gpus),
        held=tuple(
            HeldLease(
                lease_id=LeaseId(held.lease_id),
                task_id=TaskId(held.task_id),
                running=held.state == pb.HeldLease.RUNNING,
            )
            for held in register.leases
        ),
    )


def inventory(node_id: NodeId, gpus: Sequence[pb.Gpu]) -> tuple[Gpu, ...]:
    if len(gpus) > _MOST_GPUS:
        raise Malformed(f"more than {_MOST_GPUS} GPUs")
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise Malformed("two GPUs of the same uuid")
    return tuple(_gpu(node_id, gpu) for gpu in gpus)


def _gpu(node_id: NodeId, gpu: pb.Gpu) -> Gpu:
    if not _WORD.fullmatch(gpu.uuid):
        raise Malformed("a GPU's uuid must be 1 to 128 printable characters")
    return Gpu(
        id=GpuId(gpu.uuid),
        node_id=node_id,
        index=gpu.index,
        model=line(gpu.model),
        memory_mb=_number(gpu.memory_mb, "memory_mb"),
        reserved=gpu.reserved,
        fault=line(gpu.fault),
    )


def _number(value: int, name: str) -> int:
    if value > _MOST_NUMBER:
        raise Malformed(f"{name} is beyond any machine")
    return value


def started(report: pb.Started) -> ReportStarted:
    return ReportStarted(lease_id=LeaseId(report.lease_id), ago_ms=min(report.ago_ms, _MOST_AGO_MS))


def finished(report: pb.Finished) -> ReportFinished:
    try:
        outcome = Outcome(report.outcome)
        error = line(report.error, _MOST_ERROR)
    except ValueError:
        # A later agent may know more ways to end. Refusing its report would hold the GPUs for ever.
        outcome = Outcome.NODE_FAULT
        error = f"the agent reported an unknown outcome: {line(report.outcome, 64)}"
    return ReportFinished(
        lease_id=LeaseId(report.lease_id),
        outcome=outcome,
        exit_code=report.exit_code,
        signal=min(report.signal, 255),
        error=error,
        ago_ms=min(report.ago_ms, _MOST_AGO_MS),
        stuck_gpus=tuple(GpuId(uuid) for uuid in report.stuck_gpus[:_MOST_GPUS]),
    )


def sample(reading: pb.GpuSample, at: int) -> GpuSample:
    return GpuSample(
        at=at,
        utilization_percent=min(reading.utilization_percent, 100),
        memory_used_mb=min(reading.memory_used_mb, _MOST_NUMBER),
        memory_foreign_mb=min(reading.memory_foreign_mb, _MOST_NUMBER),
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        fault=line(reading.fault),
    )


def foreign_step_mb(foreign_mb: int) -> int:
    """Rounded up, so that small changes of other programs do not fill the journal."""
    return -(-foreign_mb // MEMORY_STEP_MB) * MEMORY_STEP_MB


def start(task: Task, lease: Lease) -> pb.Start:
    return pb.Start(
        lease_id=lease.id,
        task_id=task.id,
        attempt=task.attempt,
        gpu_uuids=lease.gpu_ids,
        detail=task.detail,
        timeout_ms=task.timeout_ms,
    )


def orders(starts: Iterable[pb.Start], stops: Iterable[pb.Stop]) -> list[pb.FromScheduler]:
    """As few messages as their size allows. Stops travel behind the starts they may speak of."""
    messages: list[pb.FromScheduler] = []
    batch = pb.Orders()
    size_bytes = 0
    for order in starts:
        if len(batch.starts) >= _MOST_ORDERS or size_bytes + len(order.detail) > _MOST_ORDER_BYTES:
            messages.append(pb.FromScheduler(orders=batch))
            batch, size_bytes = pb.Orders(), 0
        batch.starts.append(order)
        size_bytes += len(order.detail)
    for stop in stops:
        if len(batch.stops) >= _MOST_ORDERS:
            messages.append(pb.FromScheduler(orders=batch))
            batch = pb.Orders()
        batch.stops.append(stop)
    if batch.starts or batch.stops:
        messages.append(pb.FromScheduler(orders=batch))
    return messages
