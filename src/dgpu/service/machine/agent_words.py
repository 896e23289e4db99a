"""Translates between messages of agents and values of the core: checks incoming messages and builds outgoing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from dgpu.core.commands import HeldLease, RegisterNode, ReportCheck, ReportFinished, ReportStarted
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.health import GpuHealth
from dgpu.core.model.ids import MAX_EPOCH, GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.node import Gpu
from dgpu.core.model.task import MEMORY_STEP_MB, Outcome
from dgpu.wire.isolation import FEATURES, Isolation
from dgpu.wire.machines import NODE_ID
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import attempt_of

_ADDRESS = re.compile(r"[A-Za-z0-9._:%\[\]-]{0,253}")  # multi-node tasks get it as MASTER_ADDR
_WORD = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces: uuids, boot and session ids

_MAX_GPUS = 64
_MAX_LEASES = 10_000
_MAX_LABELS = 64
_MAX_NEAR = 1_000
_MAX_TEXT = 256
_MAX_ERROR = 1_000
_MAX_CAUSE = 32
_MAX_DIRECTORY = 1_024
MAX_NUMBER = 1 << 40
MAX_AGO_MS = 30 * 86_400_000

_SAYS_THE_NODE = "the node says: "


_MAX_ORDERS = 500
_MAX_ORDER_BYTES = 1 << 20


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """The latest raw reading of a GPU. The core never sees it. None: the GPU has no such sensor."""

    at: int
    utilization_percent: int | None = None
    memory_used_mb: int | None = None
    memory_foreign_mb: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    fault: str = ""
    fault_cause: str = ""
    leases_mb: tuple[tuple[LeaseId, int], ...] = ()  # of dgpu tasks on the GPU, if the agent can measure it
    loaded_models: tuple[str, ...] = ()


def reason_of_node(unfit: str) -> str:
    """The reason of a drain that the node requested itself. The drain ends when the node is fit again."""
    return _SAYS_THE_NODE + line(unfit)


def is_reason_of_node(reason: str) -> bool:
    return reason.startswith(_SAYS_THE_NODE)


class Malformed(Exception):  # noqa: N818 - the name states the failure
    """The message breaks the protocol. The text describes the fault for the agent's log."""


def line(text: str, most: int = _MAX_TEXT) -> str:
    """One printable line, because texts of agents end up in terminals and logs."""
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()


def registration(register: pb.Register) -> RegisterNode:
    if not NODE_ID.fullmatch(register.node_id):
        raise Malformed("node_id must be 1 to 128 letters, digits, dots, dashes or underscores")
    if not _WORD.fullmatch(register.boot_id) or not _WORD.fullmatch(register.session_id):
        raise Malformed("boot_id and session_id must be 1 to 128 printable characters")
    if len(register.leases) > _MAX_LEASES:
        raise Malformed(f"more than {_MAX_LEASES} leases")
    if register.highest_epoch > MAX_EPOCH:
        raise Malformed(
            f"highest_epoch is {register.highest_epoch}, which is above {MAX_EPOCH}, the last possible one"
        )
    if any(len(word) > _MAX_TEXT for word in (register.cluster_id, register.nonce)):
        raise Malformed(f"cluster_id and nonce must have at most {_MAX_TEXT} characters")
    if len(register.labels) > _MAX_LABELS:
        raise Malformed(f"more than {_MAX_LABELS} labels")
    if not _ADDRESS.fullmatch(register.address):
        given = line(register.address, 64)
        raise Malformed(f"address is {given!r}, expected a host name or IP address of at most 253 characters")
    node_id = NodeId(register.node_id)
    return RegisterNode(
        node_id=node_id,
        boot_id=register.boot_id,
        address=register.address,
        agent_version=line(register.agent_version),
        cpus_milli=_number(register.cpus_milli, "cpus_milli"),
        ram_mb=_number(register.ram_mb, "ram_mb"),
        labels={line(key): line(value) for key, value in sorted(register.labels.items())},
        gpus=inventory(node_id, register.gpus),
        work_dir=_directory(register.work_dir),
        enforced=tuple(name for name in FEATURES if name in register.enforced),
        not_isolated=line(register.not_isolated),
        held=tuple(
            HeldLease(
                lease_id=LeaseId(held.lease_id),
                task_id=TaskId(held.task_id),
                running=held.state == pb.HeldLease.RUNNING,
                attempt=attempt_of(held.attempt),
                nonce=held.nonce,
                cluster_id=held.cluster_id,
                worker_lease_id=LeaseId(held.worker_lease_id),
            )
            for held in register.leases
        ),
    )


def _directory(path: str) -> str:
    """An absolute, printable path, or an empty text. The path is only displayed."""
    return path if path.startswith("/") and path.isprintable() and len(path) <= _MAX_DIRECTORY else ""


def inventory(node_id: NodeId, gpus: Sequence[pb.Gpu]) -> tuple[Gpu, ...]:
    if len(gpus) > _MAX_GPUS:
        raise Malformed(f"more than {_MAX_GPUS} GPUs")
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise Malformed("two GPUs with the same uuid")
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
        fault_cause=line(gpu.fault_cause, _MAX_CAUSE) if gpu.fault else "",
        near=tuple(
            (GpuId(near.uuid), min(near.value, _MAX_NEAR))
            for near in gpu.near[:_MAX_GPUS]
            if _WORD.fullmatch(near.uuid)
        ),
    )


def _number(value: int, name: str) -> int:
    if value > MAX_NUMBER:
        raise Malformed(f"{name} is too large for any machine")
    return value


def started(report: pb.Started) -> ReportStarted:
    return ReportStarted(lease_id=LeaseId(report.lease_id), ago_ms=min(report.ago_ms, MAX_AGO_MS))


def finished(report: pb.Finished) -> ReportFinished:
    try:
        outcome = Outcome(report.outcome)
        error = line(report.error, _MAX_ERROR)
    except ValueError:
        # A later agent may know more outcomes. Refusing its report would hold the GPUs forever.
        outcome = Outcome.NODE_FAULT
        error = f"the agent reported an unknown outcome: {line(report.outcome, 64)}"
    return ReportFinished(
        lease_id=LeaseId(report.lease_id),
        outcome=outcome,
        exit_code=report.exit_code,
        signal=min(report.signal, 255),
        error=error,
        ago_ms=min(report.ago_ms, MAX_AGO_MS),
        stuck_gpus=tuple(GpuId(uuid) for uuid in report.stuck_gpus[:_MAX_GPUS]),
        peak_memory_mb=min(report.peak_memory_mb, MAX_NUMBER),
        usage=_usage(report),
    )


def _usage(report: pb.Finished) -> AttemptUsage | None:
    told = report.usage
    usage = AttemptUsage(
        gpu_samples=told.gpu_samples,
        gpu_percent=min(told.gpu_percent, 100),
        gpu_percent_p95=min(told.gpu_percent_p95, 100),
        gpu_peak_mb=min(report.peak_memory_mb, MAX_NUMBER),
        cpu_ms=min(told.cpu_ms, MAX_NUMBER),
        rss_mb=min(told.rss_mb, MAX_NUMBER),
    )
    return None if usage == AttemptUsage() else usage


def sample(reading: pb.GpuSample, at: int) -> GpuSample:
    """The only function that knows how an agent reports a missing sensor."""
    untold = frozenset(reading.untold)
    has_memory = "memory" not in untold
    return GpuSample(
        at=at,
        utilization_percent=None if "utilization" in untold else min(reading.utilization_percent, 100),
        memory_used_mb=min(reading.memory_used_mb, MAX_NUMBER) if has_memory else None,
        memory_foreign_mb=min(reading.memory_foreign_mb, MAX_NUMBER) if has_memory else None,
        temperature_c=None if "temperature" in untold else reading.temperature_c,
        power_w=None if "power" in untold else reading.power_w,
        fault=line(reading.fault),
        fault_cause=line(reading.fault_cause, _MAX_CAUSE) if reading.fault else "",
        leases_mb=tuple(
            (LeaseId(each.lease_id), min(each.memory_mb, MAX_NUMBER)) for each in reading.leases[:_MAX_LEASES]
        ),
        loaded_models=tuple(line(name) for name in reading.loaded_models[:_MAX_LABELS]),
    )


def foreign_step_mb(foreign_mb: int) -> int:
    """Rounded up, so that small changes by other programs do not fill the journal."""
    return -(-foreign_mb // MEMORY_STEP_MB) * MEMORY_STEP_MB


def account(isolation: Isolation, tenant: str) -> pb.Account | None:
    """None: tasks run as the agent's own user."""
    return pb.Account(tenant=tenant, user=isolation.user_of(tenant)) if isolation.has_boundary else None


def checked(gpu_id: GpuId, answer: pb.Checked) -> ReportCheck:
    evidence = line(answer.evidence, _MAX_ERROR) or "the agent gave no description"
    return ReportCheck(gpu_id=gpu_id, number=answer.number, ok=answer.ok, evidence=evidence)


def check(health: GpuHealth) -> pb.Check:
    return pb.Check(uuid=health.gpu_id, number=health.checks)


def orders(
    starts: Iterable[pb.Start | pb.Call], stops: Iterable[pb.Stop], checks: Iterable[pb.Check] = ()
) -> list[pb.FromScheduler]:
    """As few messages as the size limit allows. Stops follow the starts that they may refer to."""
    messages: list[pb.FromScheduler] = []
    batch = pb.Orders()
    number = size_bytes = 0
    for order in starts:
        if number >= _MAX_ORDERS or size_bytes + _size(order) > _MAX_ORDER_BYTES:
            messages.append(pb.FromScheduler(orders=batch))
            batch, number, size_bytes = pb.Orders(), 0, 0
        if isinstance(order, pb.Call):
            batch.calls.append(order)
        else:
            batch.starts.append(order)
        number += 1
        size_bytes += _size(order)
    for stop in stops:
        if len(batch.stops) >= _MAX_ORDERS:
            messages.append(pb.FromScheduler(orders=batch))
            batch = pb.Orders()
        batch.stops.append(stop)
    batch.checks.extend(checks)  # each names one GPU of the node
    if batch.starts or batch.calls or batch.stops or batch.checks:
        messages.append(pb.FromScheduler(orders=batch))
    return messages


def _size(order: pb.Start | pb.Call) -> int:
    if isinstance(order, pb.Call):
        return len(order.args) + 128
    return len(order.detail) + sum(map(len, order.secret_files.values()))
