"""Proximity of the GPUs of a node, from NVML: NVLink, PCIe switches, NUMA nodes.

Without data, a GPU is equally near to all others. GPUs connected through NVLink switches reach each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pynvml

from dgpu.agent.probe.probe import NUMA, NVLINK, SWITCH
from dgpu.core.model.ids import GpuId

_MAX_LINKS = 18
_NEAR_SWITCH = pynvml.NVML_TOPOLOGY_MULTIPLE
_NEAR_NUMA = pynvml.NVML_TOPOLOGY_NODE


def read_topology(cards: Mapping[GpuId, Any]) -> dict[GpuId, tuple[tuple[GpuId, int], ...]]:
    """`cards`: handles by UUID. Empty if NVML reports nothing."""
    links = {gpu_id: _links(handle) for gpu_id, handle in cards.items()}
    places = {gpu_id: _bus_id(handle) for gpu_id, handle in cards.items()}
    found: dict[GpuId, tuple[tuple[GpuId, int], ...]] = {}
    for gpu_id, handle in cards.items():
        near = []
        for other, other_handle in cards.items():
            if other != gpu_id:
                joined = _joined(links[gpu_id], links[other], places[other])
                value = NVLINK + joined if joined else _ancestor(handle, other_handle)
                if value:
                    near.append((other, value))
        if near:
            found[gpu_id] = tuple(near)
    return found


class _Links:
    def __init__(self) -> None:
        self.switched = 0  # links into a switch
        self.to: dict[str, int] = {}  # links to another GPU, by its bus id


def _joined(mine: _Links, theirs: _Links, place: str) -> int:
    return mine.to.get(place, 0) or min(mine.switched, theirs.switched)


def _links(handle: Any) -> _Links:
    links = _Links()
    for number in range(_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, number) != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = _place(pynvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, number).busId)
        except pynvml.NVMLError:
            break  # no such link, or no NVLink at all
        if _is_switch(handle, number):
            links.switched += 1
        else:
            links.to[remote] = links.to.get(remote, 0) + 1
    return links


def _is_switch(handle: Any, number: int) -> bool:
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
    except (AttributeError, pynvml.NVMLError):
        return False
    return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)


def _ancestor(handle: Any, other: Any) -> int:
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
    except pynvml.NVMLError:
        return 0
    if level <= _NEAR_SWITCH:
        return SWITCH
    return NUMA if level <= _NEAR_NUMA else 0


def _bus_id(handle: Any) -> str:
    try:
        return _place(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError:
        return ""


def _place(bus_id: bytes | str) -> str:
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"  # written with four or eight digits of domain
