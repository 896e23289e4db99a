"""Turns readings of a GPU into faults. No I/O: all probes use it in the same way.

Hardware errors (Xid, ECC) are momentary; such a fault stays until a check of the GPU is requested, so that it cannot be
missed. Heat is a fault while it lasts.
"""

from __future__ import annotations

import msgspec

from dgpu.core.model.health import Cause
from dgpu.core.model.ids import GpuId

DEFAULT_LIMIT_C = 95  # of GPUs without their own limit
_COOLED_C = 5  # heat ends this much below the limit
_HOT_LOOKS = 2  # a single reading may be wrong

# Errors of hardware or driver. Others (13, 31, 43, 45 ...) come from programs, and a user's bug is no fault of the GPU.
XIDS = {
    48: "memory error that could not be corrected",
    62: "halt of a controller inside the card",
    64: "failure to set bad memory aside",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    92: "too many memory errors that were corrected",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "no answer of the card's system processor",
    120: "error of the card's system processor",
    140: "memory error that could not be recovered",
}


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    temperature_c: int | None = None  # None: not read this time
    limit_c: int = 0  # the GPU's own; 0: none
    uncorrected: int | None = None  # memory errors since the driver was loaded; None: not offered
    xids: tuple[int, ...] = ()  # since the last reading


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    fault: str = ""  # empty: healthy
    cause: str = ""


HEALTHY = Ailment()


class _Card:
    __slots__ = ("heat", "hot_looks", "latched", "program_xid", "uncorrected", "xids")

    def __init__(self) -> None:
        self.latched: Ailment | None = None
        self.heat: Ailment | None = None
        self.hot_looks = 0
        self.uncorrected: int | None = None
        self.program_xid = 0  # the last one
        self.xids = 0


class Ailments:
    def __init__(self, *, max_temperature_c: int = 0) -> None:
        self._max_temperature_c = max_temperature_c
        self._cards: dict[GpuId, _Card] = {}

    def look(self, gpu_id: GpuId, reading: Reading) -> Ailment:
        card = self._cards.get(gpu_id)
        if card is None:
            card = self._cards[gpu_id] = _Card()
        self._heat(card, reading)
        self._memory(card, reading)
        self._driver(card, reading)
        return card.latched or card.heat or HEALTHY

    def current(self, gpu_id: GpuId) -> Ailment:
        card = self._cards.get(gpu_id)
        return HEALTHY if card is None else card.latched or card.heat or HEALTHY

    def absolve(self, gpu_id: GpuId) -> None:
        """A check begins: earlier errors have been reported and no longer count."""
        card = self._cards.get(gpu_id)
        if card is not None:
            card.latched = None

    def take_program_xid(self, gpu_id: GpuId) -> int:
        """The last error caused by a program since the previous call; 0: none."""
        card = self._cards.get(gpu_id)
        if card is None:
            return 0
        taken, card.program_xid = card.program_xid, 0
        return taken

    def _heat(self, card: _Card, reading: Reading) -> None:
        if reading.temperature_c is None:
            return
        limit_c = self._max_temperature_c or reading.limit_c or DEFAULT_LIMIT_C
        if reading.temperature_c <= limit_c:
            card.hot_looks = 0
            if reading.temperature_c <= limit_c - _COOLED_C:
                card.heat = None
            return
        card.hot_looks += 1
        if card.hot_looks >= _HOT_LOOKS and card.heat is None:
            # The text stays the same while it lasts: a new text would be a new fault.
            fault = f"{reading.temperature_c} °C, over the limit of {limit_c} °C"
            card.heat = Ailment(fault=fault, cause=Cause.HOT.value)

    def _memory(self, card: _Card, reading: Reading) -> None:
        if reading.uncorrected is None:
            return
        before, card.uncorrected = card.uncorrected, reading.uncorrected
        # The first reading only sets the number: earlier errors do not count.
        if before is not None and reading.uncorrected > before:
            fault = (
                f"{reading.uncorrected - before} new memory errors that could not be corrected, "
                f"{reading.uncorrected} since the driver was loaded"
            )
            card.latched = Ailment(fault=fault, cause=Cause.ECC.value)

    def _driver(self, card: _Card, reading: Reading) -> None:
        for xid in reading.xids:
            if xid not in XIDS:
                card.program_xid = xid
            else:
                card.xids += 1
                # The number makes a second error of the same kind a new fault.
                fault = f"Xid {xid}: {XIDS[xid]} (hardware error {card.xids} since the agent started)"
                card.latched = Ailment(fault=fault, cause=Cause.XID.value)
