"""Simulated GPUs, for development and demonstrations. Their telemetry behaves like that of real GPUs.

A leased GPU is under load: utilisation jumps, memory fills over seconds, temperature follows over a minute. The same
seed, clock and calls give the same numbers.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from dgpu.agent.probe.ailments import Ailments, Reading
from dgpu.agent.probe.models import CardModel, SimulatedCards, card_model, check_cards
from dgpu.agent.probe.probe import NUMA, NVLINK, SWITCH, BusyGpus, Examination, FoundGpu, ProbeError, Sample
from dgpu.core.model.health import Cause
from dgpu.core.model.ids import GpuId, NodeId

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.dgpu")

# Seconds after which a value has reached 63 % of its change.
_UTILIZATION_TAU = 1.0
_MEMORY_TAU = 8.0
_POWER_TAU = 1.5
_TEMPERATURE_TAU = 40.0

_ROOM_C = 30.0
_FULL_LOAD_C = 48.0  # above room temperature, at the power limit


class SimulatedProbe:
    def __init__(
        self,
        *,
        node_id: NodeId,
        cards: Sequence[SimulatedCards],
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        max_temperature_c: int = 0,
    ) -> None:
        check_cards(cards)
        self._ailments = Ailments(max_temperature_c=max_temperature_c)
        self._clock = clock
        self._lock = threading.Lock()
        self._cards: dict[GpuId, _Card] = {}
        count = sum(entry.count for entry in cards)
        for entry in cards:
            for _ in range(entry.count):
                gpu = _found(node_id, len(self._cards), count, entry)
                self._cards[gpu.id] = _Card(gpu, card_model(entry.model), f"{seed}:{gpu.id}", clock())

    def list_gpus(self) -> list[FoundGpu]:
        with self._lock:
            return [self._with_ailment(card.gpu) for card in self._cards.values() if card.present]

    def sample(self, busy: BusyGpus) -> list[Sample]:
        with self._lock:
            now = self._clock()
            return [
                self._sample_one(card, now, leased=card.gpu.id in busy)
                for card in self._cards.values()
                if card.present
            ]

    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        with self._lock:
            card = self._cards.get(gpu_id)
            if card is None or not card.present:
                raise ProbeError(f"{gpu_id}: no such simulated card")
            return card.holders

    def examine(self, gpu_id: GpuId) -> Examination:
        with self._lock:
            card = self._cards.get(gpu_id)
            if card is None or not card.present:
                return Examination(ok=False, words="no such simulated card")
            self._ailments.absolve(gpu_id)
            sick = self._with_ailment(card.gpu).fault or card.hidden_fault
        if sick:
            return Examination(ok=False, words=sick)
        return Examination(ok=True, words="the simulated card is well")

    def program_xid(self, gpu_id: GpuId) -> int:
        with self._lock:
            card = self._cards.get(gpu_id)
            if card is not None and card.xids:
                self._ailments.look(gpu_id, Reading(xids=card.take_xids()))
            return self._ailments.take_program_xid(gpu_id)

    def close(self) -> None:
        pass

    def _sample_one(self, card: _Card, now: float, *, leased: bool) -> Sample:
        sample = card.step(now, leased=leased)
        reading = Reading(
            temperature_c=sample.temperature_c, uncorrected=card.uncorrected, xids=card.take_xids()
        )
        ailment = self._ailments.look(card.gpu.id, reading)
        if sample.fault:
            return sample
        return msgspec.structs.replace(sample, fault=ailment.fault, fault_cause=ailment.cause)

    def _with_ailment(self, gpu: FoundGpu) -> FoundGpu:
        if gpu.fault:
            return gpu
        ailment = self._ailments.current(gpu.id)
        return msgspec.structs.replace(gpu, fault=ailment.fault, fault_cause=ailment.cause)

    # Actions for tests and demonstrations.

    def set_fault(self, gpu_id: GpuId, fault: str, cause: Cause = Cause.LOST) -> None:
        """An empty text removes the fault."""
        with self._lock:
            card = self._cards[gpu_id]
            card.gpu = msgspec.structs.replace(
                card.gpu, fault=fault, fault_cause=cause.value if fault else ""
            )

    def set_hidden_fault(self, gpu_id: GpuId, fault: str) -> None:
        """Only a check finds it."""
        with self._lock:
            self._cards[gpu_id].hidden_fault = fault

    def raise_xid(self, gpu_id: GpuId, xid: int) -> None:
        with self._lock:
            self._cards[gpu_id].xids.append(xid)

    def add_memory_errors(self, gpu_id: GpuId, count: int) -> None:
        with self._lock:
            self._cards[gpu_id].uncorrected += count

    def set_heat(self, gpu_id: GpuId, above_c: int) -> None:
        """Adds this much to the temperature of its load."""
        with self._lock:
            self._cards[gpu_id].extra_c = above_c

    def set_present(self, gpu_id: GpuId, *, present: bool) -> None:
        with self._lock:
            self._cards[gpu_id].present = present

    def set_foreign_mb(self, gpu_id: GpuId, memory_mb: int) -> None:
        with self._lock:
            self._cards[gpu_id].foreign_mb = memory_mb

    def set_holders(self, gpu_id: GpuId, pids: frozenset[int]) -> None:
        """Processes that keep holding the GPU's memory."""
        with self._lock:
            self._cards[gpu_id].holders = pids


def simulated_gpu_id(node_id: NodeId, index: int) -> GpuId:
    """Stable over restarts and different on every node."""
    return GpuId(f"GPU-{uuid.uuid5(_NAMESPACE, f'{node_id}/{index}')}")


def _near(node_id: NodeId, index: int, count: int, links: str) -> tuple[tuple[GpuId, int], ...]:
    """Pairs: two cards on NVLink, four on a switch, eight on a NUMA node."""
    near = []
    for other in range(count):
        if other == index or not links:
            continue
        value = NVLINK + 2
        if links == "pairs" and other // 2 != index // 2:
            value = SWITCH if other // 4 == index // 4 else NUMA if other // 8 == index // 8 else 0
        near.append((simulated_gpu_id(node_id, other), value))
    return tuple(near)


def _found(node_id: NodeId, index: int, count: int, entry: SimulatedCards) -> FoundGpu:
    return FoundGpu(
        id=simulated_gpu_id(node_id, index),
        index=index,
        model=entry.model,
        memory_mb=entry.memory_mb or card_model(entry.model).memory_mb,
        near=_near(node_id, index, count, entry.links),
    )


class _Card:
    def __init__(self, gpu: FoundGpu, model: CardModel, seed: str, now: float) -> None:
        self.gpu = gpu
        self.present = True
        self.foreign_mb = 0
        self.holders: frozenset[int] = frozenset()
        self.hidden_fault = ""
        self.xids: list[int] = []
        self.uncorrected = 0
        self.extra_c = 0
        self._model = model
        self._random = random.Random(seed)  # noqa: S311  the numbers keep no secret
        self._at = now
        self._leased = False
        self._utilization = 0.0
        self._memory_mb = 0.0
        self._power_w = float(model.idle_w)
        self._temperature_c = _ROOM_C + self._random.uniform(0.0, 6.0)
        self._load = 0.0
        self._load_memory_mb = 0.0

    def step(self, now: float, *, leased: bool) -> Sample:
        passed = max(now - self._at, 0.0)
        self._at = max(now, self._at)
        if leased != self._leased:
            self._begin(leased=leased)
        wobble = self._random.gauss(0.0, 2.5) if leased else 0.0
        self._utilization = _approach(self._utilization, self._load, passed, _UTILIZATION_TAU)
        self._memory_mb = _approach(self._memory_mb, self._load_memory_mb, passed, _MEMORY_TAU)
        utilization = min(max(self._utilization + wobble, 0.0), 100.0)
        wanted_w = self._model.idle_w + (self._model.max_w - self._model.idle_w) * 0.92 * utilization / 100.0
        self._power_w = _approach(self._power_w, wanted_w, passed, _POWER_TAU)
        wanted_c = _ROOM_C + 4.0 + _FULL_LOAD_C * self._power_w / self._model.max_w
        self._temperature_c = _approach(self._temperature_c, wanted_c, passed, _TEMPERATURE_TAU)
        foreign_mb = min(self.foreign_mb, self.gpu.memory_mb)
        return Sample(
            gpu_id=self.gpu.id,
            utilization_percent=round(utilization),
            memory_used_mb=min(round(self._memory_mb) + foreign_mb, self.gpu.memory_mb),
            memory_foreign_mb=foreign_mb,
            temperature_c=round(self._temperature_c) + self.extra_c,
            power_w=round(self._power_w),
            fault=self.gpu.fault,
            fault_cause=self.gpu.fault_cause,
        )

    def take_xids(self) -> tuple[int, ...]:
        taken, self.xids = tuple(self.xids), []
        return taken

    def _begin(self, *, leased: bool) -> None:
        self._leased = leased
        if leased:
            self._load = self._random.uniform(80.0, 98.0)
            self._load_memory_mb = self.gpu.memory_mb * self._random.uniform(0.45, 0.85)
        else:
            self._load = 0.0
            # Memory is freed at once with its process; heat is not.
            self._load_memory_mb = self._memory_mb = 0.0


def _approach(value: float, target: float, passed: float, tau: float) -> float:
    return target + (value - target) * math.exp(-passed / tau)
