"""Inputs and outputs of a session, and their form on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle_words import Acked, HeldRun, LeaseState, Ordered, Report, Welcomed, Woke
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunnerFit, RunOrder
from dgpu.agent.workers.calls import WorkersSeen, returned_message
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.task import WHOLE_MILLI, WorkerSetup
from dgpu.wire.address import Address, is_loopback, parse_address
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

_HELD_STATES = {
    LeaseState.RECEIVED: pb.HeldLease.STARTING,
    LeaseState.STARTING: pb.HeldLease.STARTING,
    LeaseState.RUNNING: pb.HeldLease.RUNNING,
    LeaseState.STOPPING: pb.HeldLease.RUNNING,
    LeaseState.RELEASING: pb.HeldLease.RUNNING,
    LeaseState.ENDED: pb.HeldLease.FINISHED,
}


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    id: GpuId
    index: int
    model: str
    memory_mb: int
    reserved: bool = False
    fault: str = ""
    fault_cause: str = ""
    near: tuple[tuple[GpuId, int], ...] = ()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    boot_id: str
    cpus_milli: int
    ram_mb: int
    agent_version: str = ""
    address: str = ""
    labels: dict[str, str] = {}
    work_dir: str = ""
    enforced: tuple[str, ...] = ()  # see wire.isolation.FEATURES
    not_isolated: str = ""  # why "users" is not among them


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]  # of all schedulers; each once
    heartbeat_ms: int = 5_000
    retry_ms: int = 1_000
    max_retry_ms: int = 30_000


# -- inputs


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The node knows its held leases and may dial."""


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """The stream to this address is open."""

    address: str
    held: tuple[HeldRun, ...] = ()


class Received(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    message: pb.FromScheduler


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The last message has left: the next one may be sent."""

    address: str


class Disconnected(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    reason: str = ""


class EpochSaved(msgspec.Struct, frozen=True, kw_only=True):
    joined: Joined


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    samples: tuple[Sample, ...]
    unfit: str = ""  # why the node takes no tasks now


class GpusFound(msgspec.Struct, frozen=True, kw_only=True):
    gpus: tuple[NodeGpu, ...]


class CardChecked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a CheckCard."""

    gpu_id: GpuId
    number: int
    ok: bool
    evidence: str


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """No more inputs are queued: gathered reports may leave as one message."""


SessionInput = (
    Begin
    | Flush
    | Connected
    | Received
    | Written
    | Disconnected
    | EpochSaved
    | Sampled
    | GpusFound
    | CardChecked
    | RunnerFit
    | Woke
    | Report
    | WorkersSeen
)

# -- outputs, beside those for the lifecycle (Welcomed, Ordered, Acked)


class Dial(msgspec.Struct, frozen=True, kw_only=True):
    address: str


class Send(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    message: pb.FromAgent


class HangUp(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by Disconnected, like any other end of a stream."""

    address: str
    reason: str


class SaveEpoch(msgspec.Struct, frozen=True, kw_only=True):
    address: str  # of the scheduler that began it
    joined: Joined


class TakeSamples(msgspec.Struct, frozen=True, kw_only=True):
    pass


class CheckCard(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler asks for a check of a GPU. Answered by CardChecked."""

    gpu_id: GpuId
    number: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler received a message that this node sent at this time: the task lease counts from it."""

    at_ms: int
    lease_ms: int
    action: str


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Registered: the stream for output may be opened to the same address."""

    address: str
    session_id: str


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note for operators."""

    event: str
    detail: str = ""


SessionOutput = (
    Dial
    | Send
    | HangUp
    | SaveEpoch
    | TakeSamples
    | CheckCard
    | Heard
    | Opened
    | Note
    | Welcomed
    | Ordered
    | Acked
)


# -- on the wire


def register_message(
    identity: Identity, *, joined: Joined, session_id: str, gpus: Sequence[NodeGpu], held: Sequence[HeldRun]
) -> pb.Register:
    return pb.Register(
        node_id=identity.node_id,
        boot_id=identity.boot_id,
        session_id=session_id,
        agent_version=identity.agent_version,
        address=identity.address,
        highest_epoch=joined.epoch,
        nonce=joined.nonce,
        cluster_id=joined.cluster_id,
        cpus_milli=identity.cpus_milli,
        ram_mb=identity.ram_mb,
        labels=identity.labels,
        work_dir=identity.work_dir,
        enforced=identity.enforced,
        not_isolated=identity.not_isolated,
        gpus=[gpu_message(gpu) for gpu in gpus],
        leases=[_held_message(run) for run in held],
    )


def run_order(start: pb.Start, cluster_id: str, server: str = "") -> RunOrder:
    return RunOrder(
        lease_id=LeaseId(start.lease_id),
        task_id=TaskId(start.task_id),
        attempt=run_number(start.attempt, start.rank),
        gpu_ids=tuple(GpuId(uuid) for uuid in start.gpu_uuids),
        detail=start.detail,
        timeout_ms=start.timeout_ms,
        gpu_memory_mb=start.gpu_memory_mb,
        share_milli=start.share_milli or WHOLE_MILLI,
        kill_outgrown=start.kill_outgrown,
        env=dict(start.env),
        nonce=start.nonce,
        cluster_id=cluster_id,
        tenant=start.account.tenant,
        user=start.account.user if start.HasField("account") else None,
        ram_mb=start.ram_mb,
        cpus_milli=start.cpus_milli,
        secret_files=dict(start.secret_files),
        upload=start.upload,
        worker=_worker_setup(start.detail),
        server=server,
    )


def servers_of(urls: Iterable[str], dialed: str) -> str:
    """The addresses of the REST API for programs on this node, as in DGPU_SERVER."""
    return ",".join(dict.fromkeys(filter(None, (_reachable(url, dialed) for url in urls))))


def _reachable(url: str, dialed: str) -> str:
    """Empty: a scheduler that listens on loopback only was dialed by another name, so it may be another machine."""
    parts = urlsplit(url)
    if not parts.netloc:
        return ""
    there = parse_address(dialed)
    if parts.hostname is None:
        return f"{parts.scheme}://{Address(host=there.host, port=parts.port or 0)}"
    return url if there.is_loopback or not is_loopback(parts.hostname) else ""


class _Detail(msgspec.Struct, frozen=True):
    worker: WorkerSetup | None = None


_decode_detail = msgspec.json.Decoder(_Detail).decode


def _worker_setup(detail: bytes) -> WorkerSetup | None:
    """Only details of workers are decoded here: most tasks are none."""
    if b'"worker":' not in detail:
        return None
    try:
        return _decode_detail(detail).worker
    except msgspec.DecodeError:
        return None  # the run fails for the same reason, and says it


def _held_message(run: HeldRun) -> pb.HeldLease:
    return pb.HeldLease(
        lease_id=run.lease_id,
        task_id=run.task_id,
        state=_HELD_STATES[run.state],
        attempt=run.attempt,
        nonce=run.nonce,
        cluster_id=run.cluster_id,
        worker_lease_id=run.worker_lease_id,
    )


def gpu_message(gpu: NodeGpu) -> pb.Gpu:
    return pb.Gpu(
        uuid=gpu.id,
        index=gpu.index,
        model=gpu.model,
        memory_mb=gpu.memory_mb,
        reserved=gpu.reserved,
        fault=gpu.fault,
        fault_cause=gpu.fault_cause,
        near=[pb.Near(uuid=uuid, value=value) for uuid, value in gpu.near],
    )


def sample_message(sample: Sample) -> pb.GpuSample:
    return pb.GpuSample(
        uuid=sample.gpu_id,
        utilization_percent=sample.utilization_percent,
        memory_used_mb=sample.memory_used_mb,
        memory_foreign_mb=sample.memory_foreign_mb,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        fault=sample.fault,
        fault_cause=sample.fault_cause,
        leases=[
            pb.LeaseMemory(lease_id=lease_id, memory_mb=memory_mb) for lease_id, memory_mb in sample.leases_mb
        ],
        loaded_models=sample.loaded_models,
        untold=sample.untold,
    )


def checked_message(checked: CardChecked) -> pb.Checked:
    return pb.Checked(
        uuid=checked.gpu_id, number=checked.number, ok=checked.ok, evidence=checked.evidence[:1_000]
    )


def reports_message(seq: int, report: Report, now_ms: int) -> pb.Reports:
    return pb.Reports(
        seq=seq,
        started=[
            pb.Started(lease_id=lease_id, ago_ms=max(0, now_ms - at_ms)) for lease_id, at_ms in report.started
        ],
        finished=[
            pb.Finished(
                lease_id=run.end.lease_id,
                outcome=run.end.outcome.value,
                exit_code=run.end.exit_code,
                signal=run.end.signal,
                error=run.end.error[:1_000],
                ago_ms=max(0, now_ms - run.end.at_ms),
                output_bytes=run.end.output_bytes + run.end.output_lost,
                stuck_gpus=run.stuck,
                peak_memory_mb=run.peak_memory_mb,
                usage=pb.RunUsage(
                    gpu_samples=run.gpu_use.samples,
                    gpu_percent=run.gpu_use.percent,
                    gpu_percent_p95=run.gpu_use.percent_p95,
                    cpu_ms=run.end.cpu_ms,
                    rss_mb=run.end.rss_mb,
                ),
            )
            for run in report.finished
        ],
        returned=[returned_message(call, now_ms) for call in report.returned],
    )
