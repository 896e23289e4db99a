"""Simulated GPUs: parses lists like `4xV100`, with public figures of the products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

_MAX_CARDS = 1024  # per node; a typing error must not exhaust the memory
_ENTRY = re.compile(r"\s*(?:(?P<count>\d{1,6})\s*[xX*]\s*)?(?P<model>[^,]*[^,\s])\s*")
_COUNT_ALONE = re.compile(r"\d*[xX*]")
_WORDS_LEFT_OUT = frozenset({"nvidia", "geforce", "tesla", "quadro", "rtx", "gtx"})


class CardModel(msgspec.Struct, frozen=True, kw_only=True):
    memory_mb: int
    idle_w: int
    max_w: int  # the board's power limit


class SimulatedCards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of equal GPUs, with the keys of `gpu.simulated` in agent.yaml."""

    model: str
    count: int = 1
    memory_mb: int = 0  # 0: the product's figure
    links: Literal["", "pairs", "all"] = (
        ""  # NVLink between neighbours, or between all; "": none, all equally near
    )


# Keys are normalised by `_key`. Idle power is a round figure, the rest is from the data sheets.
_MODELS = {
    "p100": CardModel(memory_mb=16_384, idle_w=30, max_w=300),
    "v100": CardModel(memory_mb=32_768, idle_w=40, max_w=300),
    "t4": CardModel(memory_mb=16_384, idle_w=10, max_w=70),
    "a10": CardModel(memory_mb=24_576, idle_w=20, max_w=150),
    "a30": CardModel(memory_mb=24_576, idle_w=30, max_w=165),
    "a40": CardModel(memory_mb=49_152, idle_w=30, max_w=300),
    "a100": CardModel(memory_mb=40_960, idle_w=50, max_w=400),
    "a100-80gb": CardModel(memory_mb=81_920, idle_w=50, max_w=400),
    "a6000": CardModel(memory_mb=49_152, idle_w=25, max_w=300),
    "l4": CardModel(memory_mb=24_576, idle_w=12, max_w=72),
    "l40s": CardModel(memory_mb=49_152, idle_w=35, max_w=350),
    "h100": CardModel(memory_mb=81_920, idle_w=70, max_w=700),
    "h200": CardModel(memory_mb=144_384, idle_w=75, max_w=700),
    "b200": CardModel(memory_mb=196_608, idle_w=140, max_w=1_000),
    "2080ti": CardModel(memory_mb=11_264, idle_w=15, max_w=250),
    "3060": CardModel(memory_mb=12_288, idle_w=12, max_w=170),
    "3080": CardModel(memory_mb=10_240, idle_w=20, max_w=320),
    "3090": CardModel(memory_mb=24_576, idle_w=20, max_w=350),
    "4070": CardModel(memory_mb=12_288, idle_w=12, max_w=200),
    "4080": CardModel(memory_mb=16_384, idle_w=15, max_w=320),
    "4090": CardModel(memory_mb=24_576, idle_w=20, max_w=450),
    "5080": CardModel(memory_mb=16_384, idle_w=15, max_w=360),
    "5090": CardModel(memory_mb=32_768, idle_w=25, max_w=575),
}
UNKNOWN_MODEL = CardModel(memory_mb=16_384, idle_w=20, max_w=250)


def card_model(name: str) -> CardModel:
    """`V100`, `Tesla V100` and `NVIDIA GeForce RTX 4090` are found; an unknown name gives a GPU with 16 GiB."""
    return _MODELS.get(_key(name), UNKNOWN_MODEL)


def parse_cards(text: str) -> tuple[SimulatedCards, ...]:
    """`4xV100`, `2xA100,4x4090`, `V100`. ValueError names the expected form."""
    cards = []
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        if match is None or _COUNT_ALONE.fullmatch(match["model"]):
            raise ValueError(f"expected a list of GPUs like 4xV100 or 2xA100,4xT4, got {text!r}")
        cards.append(SimulatedCards(model=match["model"], count=int(match["count"] or 1)))
    check_cards(cards)
    return tuple(cards)


def check_cards(cards: Sequence[SimulatedCards]) -> None:
    for entry in cards:
        if not entry.model.strip() or not entry.model.isprintable():
            raise ValueError(f"a model needs a printable name, got {entry.model!r}")
        if entry.count < 1 or entry.memory_mb < 0:
            raise ValueError(f"{entry.model}: count must be at least 1 and memory_mb not negative")
    total = sum(entry.count for entry in cards)
    if total > _MAX_CARDS:
        raise ValueError(f"{total} GPUs: one node may have at most {_MAX_CARDS}")


def _key(name: str) -> str:
    spaced = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", name.lower())  # RTX4090 is RTX 4090
    words = [word for word in re.split(r"[\s_]+", spaced) if word not in _WORDS_LEFT_OUT]
    return re.sub(r"-(?:sxm\d?|pcie)\b", "", "-".join(words)).replace("-ti", "ti")
