"""The score of a GPU under `placement: balanced`: loaded models first, then free memory, low load, low temperature,
rest.

Points are tenths, so that whole numbers suffice. The condition of a GPU is a band, journaled when the band changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dgpu.core.model.task import WHOLE_MILLI

if TYPE_CHECKING:
    from dgpu.core.index.room import Card
    from dgpu.core.model.node import Gpu

LOADED: Final = 1_000  # 100: the model is loaded
LOADABLE: Final = 500  # 50: there is room for one more model
MEMORY: Final = 400
LOAD_BANDS: Final = (300, 225, 150, 75, 0)  # from idle to fully used
HEAT_BANDS: Final = (200, 150, 100, 50, 0)
REST_BANDS: Final = (0, 50, 100)
SHARED: Final = 500  # bonus for a GPU that has shares, so that whole GPUs stay whole

LOAD_EDGES_PERCENT: Final = (10, 35, 60, 85)  # a band begins at its edge
HEAT_EDGES_C: Final = (45, 60, 72, 83)
REST_EDGES_MS: Final = (60_000, 600_000)

_POINT: Final = 1 << 24  # one tenth of a point outweighs any memory; more memory wins a tie


def card_key(gpu: Gpu, usable_mb: int) -> int:
    points = (
        MEMORY * usable_mb // max(1, gpu.memory_mb)
        + LOAD_BANDS[gpu.load_band]
        + HEAT_BANDS[gpu.heat_band]
        + REST_BANDS[gpu.rest_band]
    )
    return -(points * _POINT + usable_mb)


def part_key(card: Card, free_milli: int) -> int:
    """The key of a GPU that has shares already: part of its memory is used."""
    gone = MEMORY * (WHOLE_MILLI - free_milli) // WHOLE_MILLI
    return card.key + (gone - SHARED) * _POINT


def affinity(card: Card, model: str) -> int:
    """The bonus to subtract from the key."""
    if not model:
        return 0
    if model in card.warm:
        return LOADED * _POINT
    return LOADABLE * _POINT if len(card.warm) < card.max_warm else 0


def band(value: int, edges: tuple[int, ...]) -> int:
    return sum(value >= edge for edge in edges)
