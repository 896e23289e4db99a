"""The options of an agent host. The entry creates them from a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dgpu.agent.accounts import IsolationOptions
from dgpu.agent.chunks import DEFAULT_CAP_BYTES
from dgpu.agent.lifecycle import DEFAULT_GRACE_MS
from dgpu.agent.output_shelf import DEFAULT_MAX_AGE_MS, DEFAULT_MAX_BYTES
from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.agent.retention import DEFAULT_LIMITS, Limits
from dgpu.core.model.ids import NodeId

PAIR_FILE = "agent.pem"  # key and certificate in one file, so that both are replaced at once


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    id: NodeId
    address: str = ""  # address for other nodes
    labels: dict[str, str] = {}
    detection_method: DetectionMethod = DetectionMethod.AUTO
    simulated: tuple[SimulatedCards, ...] = ()
    gpu_ids: tuple[int | str, ...] = ()  # empty: all
    reserved_gpu_ids: tuple[int | str, ...] = ()
    max_temperature_c: int = 0  # 0: the GPU's own limit
    check_command: str = (
        ""  # tests a GPU before it returns to service; empty: memory is written and read back
    )
    cpus_milli: int = 0  # 0: those of the machine
    ram_mb: int = 0  # 0: that of the machine


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    socket: str  # of the engine
    default_image: str = ""  # for tasks without one; empty: they run as processes
    allowed_mounts: tuple[str, ...] = ()  # directories of the node; with :ro, read-only
    user: str = ""  # UID:GID in the container; empty: see run.containers
    gpu_method: Literal["gpus", "cdi"] = "gpus"
    network: str = ""  # empty: the engine's default
    pids_limit: int = 4_096
    shm_mb: int = 1_024
    pull: Literal["missing", "always", "never"] = "missing"
    auth_file: str = ""
    hidden: tuple[str, ...] = ()  # files of the node that no mount may show
    simulated_gpus: bool = False  # no device exists that could be handed out


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    directory: Path  # of the certificate
    renew_before_s: float = 0  # before expiry; 0: a third of the lifetime


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeOptions, ...]  # more than one only with simulated cards
    addresses: tuple[str, ...]  # of all schedulers; each once
    state_dir: Path  # keeper, lease log, epoch, output
    tls: TlsOptions | None = None  # None: plain text
    work_dir: Path | None = None  # of the directories of tasks; None: `tasks` under state_dir
    heartbeat_ms: int = 5_000
    retry_ms: int = 1_000
    max_retry_ms: int = 30_000
    health_check_ms: int = 30_000
    runner: Literal["process", "null"] = "process"
    containers: ContainerOptions | None = None  # None: this node runs none
    grace_ms: int = DEFAULT_GRACE_MS
    output_cap_bytes: int = DEFAULT_CAP_BYTES
    output_retention_bytes: int = DEFAULT_MAX_BYTES  # of ended attempts, in all
    output_retention_ms: int = DEFAULT_MAX_AGE_MS
    keeper_idle_exit_ms: int = 600_000
    stop_tasks: bool = False  # end the tasks at a clean stop instead of leaving them to the keeper
    workdir_limits: Limits = DEFAULT_LIMITS  # of directories of ended tasks
    isolation: IsolationOptions = IsolationOptions()

    @property
    def tasks_dir(self) -> Path:
        return self.work_dir or self.state_dir / "tasks"
