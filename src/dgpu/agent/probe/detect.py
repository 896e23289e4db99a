"""Chooses the probe of this machine and the GPUs to use."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence

import msgspec

from dgpu.agent.probe.models import SimulatedCards
from dgpu.agent.probe.probe import FoundGpu, Probe, ProbeError
from dgpu.core.model.ids import GpuId, NodeId

_NO_NODE = NodeId("")


class DetectionMethod(enum.StrEnum):
    AUTO = "auto"  # NVML, then nvidia-smi
    NVML = "nvml"
    NVIDIA_SMI = "nvidia-smi"
    SIMULATED = "simulated"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    method: DetectionMethod
    reason: str  # why it cannot be used; empty: it can


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    probe: Probe | None  # None: nothing worked, and `attempts` say why
    method: DetectionMethod | None
    gpus: tuple[FoundGpu, ...]
    attempts: tuple[Attempt, ...]

    @property
    def why_none(self) -> str:
        """One line for people; empty if a probe was found."""
        if self.probe is not None:
            return ""
        return "; ".join(f"{attempt.method}: {attempt.reason}" for attempt in self.attempts)


def detect(
    method: DetectionMethod = DetectionMethod.AUTO,
    *,
    node_id: NodeId = _NO_NODE,
    simulated: Sequence[SimulatedCards] = (),
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    max_temperature_c: int = 0,
) -> Detection:
    """Auto never simulates: simulated GPUs must be requested."""
    tried: list[Attempt] = []
    for candidate in _candidates(method):
        probe: Probe | None = None
        try:
            probe = _open(
                candidate,
                node_id=node_id,
                simulated=simulated,
                seed=seed,
                clock=clock,
                max_temperature_c=max_temperature_c,
            )
            gpus = tuple(probe.list_gpus())
        except (ProbeError, ValueError) as error:
            tried.append(Attempt(method=candidate, reason=str(error)))
        else:
            if gpus:
                tried.append(Attempt(method=candidate, reason=""))
                return Detection(probe=probe, method=candidate, gpus=gpus, attempts=tuple(tried))
            tried.append(Attempt(method=candidate, reason=_no_cards(candidate)))
        if probe is not None:
            probe.close()
    return Detection(probe=None, method=None, gpus=(), attempts=tuple(tried))


class PickedGpu(msgspec.Struct, frozen=True, kw_only=True):
    gpu: FoundGpu
    reserved: bool  # shown, never used


class GpuSelection(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu_ids` and `reserved_gpu_ids`, resolved to UUIDs once: an index names another card after one has died."""

    wanted: frozenset[GpuId] | None  # None: all
    reserved: frozenset[GpuId]
    missing: tuple[str, ...]  # ids of the configuration without a GPU on this node

    @classmethod
    def resolve(
        cls,
        found: Sequence[FoundGpu],
        *,
        gpu_ids: Sequence[int | str] = (),
        reserved_gpu_ids: Sequence[int | str] = (),
    ) -> GpuSelection:
        by_index = {str(gpu.index): gpu.id for gpu in found}
        by_uuid = {gpu.id.lower(): gpu.id for gpu in found}
        names = by_index | by_uuid
        asked = [str(name).strip().lower() for name in (*gpu_ids, *reserved_gpu_ids)]
        wanted = frozenset(names[key] for key in asked[: len(gpu_ids)] if key in names)
        reserved = frozenset(names[key] for key in asked[len(gpu_ids) :] if key in names)
        missing = tuple(dict.fromkeys(key for key in asked if key not in names))
        # A reserved GPU is shown although it is not used.
        return cls(wanted=wanted | reserved if gpu_ids else None, reserved=reserved, missing=missing)

    def pick(self, found: Sequence[FoundGpu]) -> list[PickedGpu]:
        return [
            PickedGpu(gpu=gpu, reserved=gpu.id in self.reserved)
            for gpu in found
            if self.wanted is None or gpu.id in self.wanted
        ]


def _candidates(method: DetectionMethod) -> tuple[DetectionMethod, ...]:
    if method is DetectionMethod.AUTO:
        return (DetectionMethod.NVML, DetectionMethod.NVIDIA_SMI)
    return (method,)


def _open(
    method: DetectionMethod,
    *,
    node_id: NodeId,
    simulated: Sequence[SimulatedCards],
    seed: int,
    clock: Callable[[], float],
    max_temperature_c: int,
) -> Probe:
    if method is DetectionMethod.NVML:
        from dgpu.agent.probe.nvml import NvmlProbe

        return NvmlProbe(max_temperature_c=max_temperature_c)
    if method is DetectionMethod.NVIDIA_SMI:
        from dgpu.agent.probe.nvidia_smi import NvidiaSmiProbe

        return NvidiaSmiProbe(max_temperature_c=max_temperature_c)
    from dgpu.agent.probe.simulated import SimulatedProbe

    return SimulatedProbe(
        node_id=node_id, cards=simulated, seed=seed, clock=clock, max_temperature_c=max_temperature_c
    )


def _no_cards(method: DetectionMethod) -> str:
    if method is DetectionMethod.SIMULATED:
        return "gpu.simulated lists no GPUs"
    return "the driver answers but lists no GPU"
