"""Observes that GPUs have freed the memory of ended leases. Threads for calls that need the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from dgpu.agent import machine
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.lifecycle_words import CheckRelease, GpusReleased, ProgramFault
from dgpu.agent.memory import clinging
from dgpu.agent.probe.probe import Probe
from dgpu.agent.probe.simulated import SimulatedProbe
from dgpu.core.model.ids import GpuId, LeaseId, NodeId

_LOOK_SECONDS = 0.05

_Lease = tuple[LeaseId, tuple[GpuId, ...]]


class ReleaseWatch:
    def __init__(
        self,
        node_id: NodeId,
        *,
        feed: Callable[[GpusReleased], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._feed = feed
        self._spawn = spawn
        self._sees_pids = machine.in_first_pid_namespace()
        self._log = structlog.get_logger("dgpu.agent").bind(node=node_id)
        self.cards_mb: dict[GpuId, int] = {}  # memory of each

    def check(self, probe: Probe | None, check: CheckRelease) -> None:
        """At once if nothing blocks; in a thread if it needs the driver."""
        if probe is None or not (self._sees_pids or isinstance(probe, SimulatedProbe)):
            self._feed(GpusReleased(released=tuple((lease_id, ()) for lease_id, _ in check.leases)))
            return
        waiting: list[_Lease] = []
        free: list[_Lease] = []
        faults: list[ProgramFault] = []
        for lease_id, gpu_ids in check.leases:
            if isinstance(probe, SimulatedProbe) and not clinging(probe, gpu_ids):
                free.append((lease_id, ()))
                faults += self._program_faults(probe, lease_id, gpu_ids)
            else:
                waiting.append((lease_id, gpu_ids))
        if free:
            self._feed(GpusReleased(released=tuple(free), faults=tuple(faults)))
        for lease_id, gpu_ids in waiting:
            self._spawn(self._wait(probe, lease_id, gpu_ids, check.until_ms))

    async def _wait(self, probe: Probe, lease_id: LeaseId, gpu_ids: tuple[GpuId, ...], until_ms: int) -> None:
        while stuck := await asyncio.to_thread(clinging, probe, gpu_ids):
            if boot_ms() >= until_ms:
                self._log.error("gpu_memory_not_released", lease=lease_id, gpus=stuck)
                break
            await asyncio.sleep(_LOOK_SECONDS)
        faults = await asyncio.to_thread(self._program_faults, probe, lease_id, gpu_ids)
        self._feed(GpusReleased(released=((lease_id, stuck),), faults=tuple(faults)))

    def _program_faults(
        self, probe: Probe, lease_id: LeaseId, gpu_ids: tuple[GpuId, ...]
    ) -> list[ProgramFault]:
        return [
            ProgramFault(lease_id=lease_id, xid=xid, card_mb=self.cards_mb.get(gpu_id, 0))
            for gpu_id in gpu_ids
            if (xid := probe.program_xid(gpu_id))
        ]
