"""Nodes and their GPUs: facts only. The status of a GPU is derived from the facts."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from dgpu.core.model.health import Health
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.task import in_steps


class NodeStatus(enum.StrEnum):
    READY = "ready"
    DRAINING = "draining"
    OFFLINE = "offline"
    UNCONFIRMED = "unconfirmed"  # has not contacted this scheduler since it started


class GpuStatus(enum.StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    OFFLINE = "offline"
    ERROR = "error"
    DRAINING = "draining"
    RESERVED = "reserved"
    UNCONFIRMED = "unconfirmed"  # probably idle, on an unconfirmed node


class Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    id: NodeId
    boot_id: str
    address: str = ""
    agent_version: str = ""
    cpus_milli: int = 0
    ram_mb: int = 0
    labels: dict[str, str] = {}
    registered_at: int = 0
    offline_since: int = 0  # 0: connected
    draining: bool = False
    drain_reason: str = ""
    unconfirmed_since: int = 0  # start of the scheduler that the node has not contacted yet; 0: it registered
    work_dir: str = ""  # parent of the directories of runs without a workdir, see wire.run_dirs; empty: none
    enforced: tuple[
        str, ...
    ] = ()  # boundaries between users that the node enforces: see wire.isolation.FEATURES
    not_isolated: str = (
        ""  # why it cannot run tasks as other Unix users; empty: it can, or its agent is older
    )

    @property
    def ram_in_steps_mb(self) -> int:
        """The limit for demands. Demands are rounded up, so without this no task could use all ram of a node."""
        return in_steps(self.ram_mb)

    @property
    def takes_tasks(self) -> bool:
        return not (self.offline_since or self.unconfirmed_since or self.draining)

    @property
    def status(self) -> NodeStatus:
        if self.offline_since:
            return NodeStatus.OFFLINE
        if self.unconfirmed_since:
            return NodeStatus.UNCONFIRMED
        return NodeStatus.DRAINING if self.draining else NodeStatus.READY


class Kind(NamedTuple):
    """GPUs of one kind are interchangeable. A node whose GPUs differ has a part for each kind."""

    model: str
    memory_mb: int  # memory that a task may use: without the safety margin and foreign memory
    parole: bool = False  # for tasks of low priority only


class Gpu(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    id: GpuId
    node_id: NodeId
    index: int
    model: str
    memory_mb: int
    reserved: bool = False
    fault: str = ""  # empty: healthy
    gone: bool = False  # no longer in the node's list, but still leased
    foreign_mb: int = 0  # used by foreign processes, in steps of 256
    fault_cause: str = ""  # one word for the fault; see health.Cause
    health: Health = Health.TRUSTED  # the current step; `ClusterState.health` holds the rest
    over_mb: int = 0  # used by shared tasks beyond what they reserved, in steps of 256
    load_band: int = 0  # utilisation, temperature and time without a task; see rules.score
    heat_band: int = 0
    rest_band: int = 0
    warm: tuple[str, ...] = ()  # loaded models
    near: tuple[
        tuple[GpuId, int], ...
    ] = ()  # other GPUs of the node, the nearer the higher; empty: all equal

    @property
    def memory_in_steps_mb(self) -> int:
        return in_steps(self.memory_mb)
