"""Xids from NVML: an event set that is emptied at every sample."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pynvml

from dgpu.core.model.ids import GpuId

_log = logging.getLogger("dgpu.probe")

_MAX_EVENTS = 1_000  # per sample; the rest waits for the next


class XidEvents:
    """If the driver offers no events, there are none; this is logged once."""

    def __init__(self) -> None:
        self._set: Any = None
        self._watched: dict[GpuId, Any] = {}
        self._said = False

    def watch(self, gpu_ids: Iterable[GpuId]) -> None:
        """NVML has started. GPUs that are already watched stay watched."""
        for gpu_id in gpu_ids:
            if gpu_id in self._watched:
                continue
            try:
                if self._set is None:
                    self._set = pynvml.nvmlEventSetCreate()
                handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_id)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            except pynvml.NVMLError as error:
                if not self._said:
                    self._said = True
                    _log.info("xid_events_not_offered gpu=%s reason=%s", gpu_id, error)
            else:
                self._watched[gpu_id] = handle

    def take(self) -> dict[GpuId, tuple[int, ...]]:
        found: dict[GpuId, tuple[int, ...]] = {}
        if self._set is None or not self._watched:
            return found
        for _ in range(_MAX_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:
                break  # a timeout: no more events; or the driver is gone, which the sample shows
            if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                gpu_id = self._whose(event.device)
                if gpu_id is not None:
                    found[gpu_id] = (*found.get(gpu_id, ()), int(event.eventData))
        return found

    def forget(self) -> None:
        """NVML stops: its handles and events become invalid."""
        if self._set is not None:
            try:
                pynvml.nvmlEventSetFree(self._set)
            except pynvml.NVMLError as error:
                _log.debug("event_set_not_freed: %s", error)
        self._set = None
        self._watched = {}

    def _whose(self, device: Any) -> GpuId | None:
        """By its handle: the UUID of a lost GPU cannot be read."""
        for gpu_id, handle in self._watched.items():
            if _address(handle) == _address(device):
                return gpu_id
        return None


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value
