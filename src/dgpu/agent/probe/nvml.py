"""Reads GPUs from NVML, by UUID: indexes change when a GPU dies.

There are two kinds of bad answers. A number that a GPU does not offer is 0 and no fault. A GPU whose memory cannot be
read, or that the driver reports lost, has a fault.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pynvml

from dgpu.agent.probe.ailments import Ailment, Ailments, Reading
from dgpu.agent.probe.foreign import foreign_mb, own_mb
from dgpu.agent.probe.nvml_events import XidEvents
from dgpu.agent.probe.probe import (
    ALL_NUMBERS,
    BusyGpus,
    Examination,
    FoundGpu,
    ProbeError,
    ProbeUnavailableError,
    Sample,
)
from dgpu.agent.probe.topology import read_topology
from dgpu.core.model.health import Cause
from dgpu.core.model.ids import GpuId

_log = logging.getLogger("dgpu.probe")

_MIB = 1024 * 1024
_SIZE_RETRIES = 3  # the list of processes may grow between asking for its size and reading it

_NOT_OFFERED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_CARD_IS_BROKEN = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "the card is lost: it fell off the bus, or its driver gave it up",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the card needs a reset",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "the card's external power cables are not connected",
    pynvml.NVML_ERROR_IRQ_ISSUE: "the kernel cannot get the card's interrupts",
    pynvml.NVML_ERROR_NOT_FOUND: "the driver no longer knows the card",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the driver no longer knows the card",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "the driver no longer knows the card",
}
_CARD_IS_LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
_CANNOT_BEGIN = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed here",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the NVIDIA driver (see /dev/nvidiactl)",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA library and the loaded kernel driver are of different versions: reboot, or reload the driver"
    ),
}


class NvmlProbe:
    """Raises ProbeUnavailableError if NVML cannot be used at all."""

    def __init__(self, *, max_temperature_c: int = 0) -> None:
        self._lock = threading.Lock()
        self._ailments = Ailments(max_temperature_c=max_temperature_c)
        self._xids = XidEvents()
        self._started = False
        self._clean = True  # the last reading found no broken GPU
        self._known: dict[GpuId, FoundGpu] = {}
        self._near: dict[GpuId, tuple[tuple[GpuId, int], ...]] = {}
        self._near_of: frozenset[GpuId] = frozenset()
        self._start()

    def list_gpus(self) -> list[FoundGpu]:
        with self._lock:
            if not self._clean or not self._started:
                # NVML lists GPUs when it starts. Only a new start notices a GPU that left or returned. It is
                # avoided if possible, because it can wake every idle GPU of the machine.
                self._stop()
                self._start()
            found = self._look()
            self._known = {gpu.id: gpu for gpu in found}
            self._xids.watch(self._known)
            return [self._with_ailment(gpu) for gpu in found]

    def sample(self, busy: BusyGpus) -> list[Sample]:
        if not self._known:
            self.list_gpus()
        with self._lock:
            xids = self._xids.take()
            return [
                self._sample_one(gpu_id, busy.get(gpu_id, frozenset()), xids.get(gpu_id, ()))
                for gpu_id in self._known
            ]

    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        with self._lock:
            try:
                return frozenset(_memory_by_pid(pynvml.nvmlDeviceGetHandleByUUID(gpu_id)))
            except pynvml.NVMLError as error:
                raise ProbeError(f"{gpu_id}: {_fault_text(error)}") from error

    def examine(self, gpu_id: GpuId) -> Examination:
        with self._lock:
            if not self._clean or not self._started:
                self._stop()
                self._start()
                self._xids.watch(self._known)
            # Errors before the check have been reported; errors during it count.
            self._ailments.look(gpu_id, Reading(xids=self._xids.take().get(gpu_id, ())))
            self._ailments.absolve(gpu_id)
            sample = self._sample_one(gpu_id, frozenset(), ())
        if sample.fault:
            return Examination(ok=False, words=sample.fault)
        return Examination(ok=True, words=f"the driver answers, {sample.temperature_c} °C")

    def program_xid(self, gpu_id: GpuId) -> int:
        with self._lock:
            self._hear_xids()
            return self._ailments.take_program_xid(gpu_id)

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _start(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            text = _CANNOT_BEGIN.get(error.value) or f"NVML does not start: {error}"
            raise ProbeUnavailableError(text) from error
        self._started = True

    def _stop(self) -> None:
        if self._started:
            self._started = False
            self._hear_xids()
            self._xids.forget()
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                _log.debug("nvml_shutdown_failed: %s", error)

    def _hear_xids(self) -> None:
        for gpu_id, xids in self._xids.take().items():
            self._ailments.look(gpu_id, Reading(xids=xids))

    def _look(self) -> list[FoundGpu]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._clean = False
            raise ProbeError(f"NVML cannot count the cards: {error}") from error
        found: list[FoundGpu] = []
        broken: dict[int, Ailment] = {}
        for index in range(count):
            try:
                found.append(self._with_what_was_known(_read_card(index)))
            except pynvml.NVMLError as error:
                broken[index] = _ailment(error)
        found.extend(self._name_broken(broken, {gpu.id for gpu in found}))
        self._clean = bool(found) and not broken and not any(gpu.fault for gpu in found)
        found = self._with_topology(found)
        return sorted(found, key=lambda gpu: (gpu.index, gpu.id))

    def _with_topology(self, found: list[FoundGpu]) -> list[FoundGpu]:
        """Read once for each set of healthy GPUs: it does not change, and reading takes time."""
        well = frozenset(gpu.id for gpu in found if not gpu.fault)
        if len(well) > 1 and well != self._near_of:
            try:
                self._near = read_topology(
                    {gpu_id: pynvml.nvmlDeviceGetHandleByUUID(gpu_id) for gpu_id in sorted(well)}
                )
                self._near_of = well
            except pynvml.NVMLError as error:
                _log.debug("nvml_topology_failed: %s", error)
        return [msgspec.structs.replace(gpu, near=self._near.get(gpu.id, ())) for gpu in found]

    def _with_what_was_known(self, gpu: FoundGpu) -> FoundGpu:
        before = self._known.get(gpu.id)
        if not gpu.fault or before is None:
            return gpu
        return msgspec.structs.replace(before, index=gpu.index, fault=gpu.fault, fault_cause=gpu.fault_cause)

    def _with_ailment(self, gpu: FoundGpu) -> FoundGpu:
        if gpu.fault:
            return gpu
        ailment = self._ailments.current(gpu.id)
        return msgspec.structs.replace(gpu, fault=ailment.fault, fault_cause=ailment.cause)

    def _name_broken(self, broken: dict[int, Ailment], healthy: set[GpuId]) -> list[FoundGpu]:
        """A lost GPU has no readable UUID: it is a known GPU that did not answer this time."""
        missing = {gpu.index: gpu for gpu in self._known.values() if gpu.id not in healthy}
        named = []
        for index, ailment in broken.items():
            gpu = missing.pop(index, None)
            if gpu is None:
                _log.warning(
                    "gpu_error index=%d fault=%s (its UUID was never seen: not listed)", index, ailment.fault
                )
            else:
                named.append(msgspec.structs.replace(gpu, fault=ailment.fault, fault_cause=ailment.cause))
        return named

    def _sample_one(self, gpu_id: GpuId, ours: frozenset[int], xids: tuple[int, ...]) -> Sample:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_id)
            total_mb, used_mb = _memory_mb(handle)
            holders = _memory_by_pid(handle)
            numbers = {**_numbers(handle), "memory": used_mb if total_mb else None}
            reading = Reading(
                temperature_c=numbers["temperature"] or 0,
                limit_c=_offered(lambda: _limit_c(handle)) or 0,
                uncorrected=_uncorrected(handle),
                xids=xids,
            )
            ailment = self._ailments.look(gpu_id, reading)
            sample = Sample(
                gpu_id=gpu_id,
                utilization_percent=numbers["utilization"] or 0,
                memory_used_mb=used_mb,
                memory_foreign_mb=foreign_mb(used_mb=used_mb, holders=holders, ours=ours),
                temperature_c=numbers["temperature"] or 0,
                power_w=numbers["power"] or 0,
                untold=tuple(name for name, value in numbers.items() if value is None),
                fault=ailment.fault,
                fault_cause=ailment.cause,
                own_mb=own_mb(holders, ours),
            )
        except pynvml.NVMLError as error:
            self._clean = False
            if xids:
                self._ailments.look(gpu_id, Reading(xids=xids))
            ailment = _ailment(error)
            return Sample(gpu_id=gpu_id, fault=ailment.fault, fault_cause=ailment.cause, untold=ALL_NUMBERS)
        return sample


def _read_card(index: int) -> FoundGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu_id = GpuId(pynvml.nvmlDeviceGetUUID(handle))
    try:
        memory_mb, ailment = _memory_mb(handle)[0], Ailment()
    except pynvml.NVMLError as error:
        memory_mb, ailment = 0, _ailment(error)
    return FoundGpu(
        id=gpu_id,
        index=index,
        model=_model(handle),
        memory_mb=memory_mb,
        fault=ailment.fault,
        fault_cause=ailment.cause,
    )


def _model(handle: Any) -> str:
    try:
        return str(pynvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA ").strip()
    except pynvml.NVMLError:
        return "unknown"


def _memory_mb(handle: Any) -> tuple[int, int]:
    """Total and used. The second version of the call excludes the driver's own memory."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _NOT_OFFERED:
            raise
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as again:
            if again.value not in _NOT_OFFERED:
                raise
            return 0, 0
    return int(memory.total) // _MIB, int(memory.used) // _MIB


def _temperature_c(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU))
    except pynvml.NVMLError as error:
        if error.value not in _NOT_OFFERED:
            raise
        return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _limit_c(handle: Any) -> int:
    """The temperature at which the GPU throttles."""
    return int(pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))


def _uncorrected(handle: Any) -> int | None:
    """Uncorrected memory errors since the driver was loaded. Most desktop GPUs do not count them."""
    try:
        return int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    except pynvml.NVMLError as error:
        if error.value in _CARD_IS_BROKEN:
            raise
        return None


def _numbers(handle: Any) -> dict[str, int | None]:
    return {
        "utilization": _offered(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "temperature": _offered(lambda: _temperature_c(handle)),
        "power": _offered(lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)),
    }


def _offered(ask: Callable[[], int]) -> int | None:
    """None for a number that this GPU does not offer; only a broken GPU is an error."""
    try:
        return max(int(ask()), 0)
    except pynvml.NVMLError as error:
        if error.value in _CARD_IS_BROKEN:
            raise
        return None


def _memory_by_pid(handle: Any) -> dict[int, int | None]:
    """Compute, graphics and MPS processes. A process in two lists counts once, with the larger figure."""
    merged: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for process in _processes(handle, kind):
            used = process.usedGpuMemory
            memory = None if used is None else int(used) // _MIB
            before = merged.get(int(process.pid))
            merged[int(process.pid)] = memory if before is None else max(before, memory or 0)
    return merged


def _processes(handle: Any, kind: str) -> list[Any]:
    for version in ("_v3", "_v2"):
        ask = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")
        for _ in range(_SIZE_RETRIES):
            try:
                return list(ask(handle))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    continue
                if error.value not in _NOT_OFFERED:
                    raise
                break  # an older driver: use the older call
    return []


def _ailment(error: Any) -> Ailment:
    cause = Cause.LOST if error.value in _CARD_IS_LOST else Cause.FAULT
    return Ailment(fault=_fault_text(error), cause=cause.value)


def _fault_text(error: Any) -> str:
    return _CARD_IS_BROKEN.get(error.value) or f"the driver cannot read the card: {error}"
