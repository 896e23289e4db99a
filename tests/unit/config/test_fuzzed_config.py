"""Configuration files with any content: they are accepted, or refused with the path of the key."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from dgpu.entry.config import ConfigError, load_agent_config, load_scheduler_config

ROOT = Path(__file__).parents[3]
LOADERS = {"scheduler": load_scheduler_config, "agent": load_agent_config}
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", " ", "x" * 10_000, "\x07", "../../etc", ":", "1-0",
    "70000-79999", "::1", [], [[]], [None], {}, {"": ""}, {"a": {"b": []}}, [{"id": 1}], ["2026-01-01"],
)  # fmt: skip


def damaged(tree: Any, chance: random.Random) -> Any:
    """The file with one to three values, or whole sections, replaced."""
    for _ in range(chance.randrange(1, 4)):
        place, key = None, None
        here = tree
        while isinstance(here, dict) and here:
            place, key = here, chance.choice(list(here))
            if chance.random() < 0.25:
                break
            here = here[key]
        if place is not None:
            new = chance.choice(JUNK)
            if chance.random() < 0.1:
                place[str(new)[:20]] = new  # a key that is not known
            else:
                place[key] = new
    return tree


@pytest.mark.parametrize("name", sorted(LOADERS))
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_accepted_or_refused_by_name(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    whole = (ROOT / "configs" / f"{name}.yaml").read_text()
    refused = 0
    for number in range(15):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(damaged(yaml.safe_load(whole), chance)))
        try:
            LOADERS[name](path, {})
        except ConfigError as error:
            refused += 1
            assert str(error).strip()
    assert refused > 3  # else the damage does not reach the checks


@pytest.mark.parametrize("name", sorted(LOADERS))
@pytest.mark.parametrize("seed", range(6))
def test_a_file_with_flipped_bytes_is_accepted_or_refused(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    whole = (ROOT / "configs" / f"{name}.yaml").read_bytes()
    path = tmp_path / "damaged.yaml"
    refused = 0
    for _ in range(10):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            LOADERS[name](path, {})
        except ConfigError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_any_value_of_the_environment_is_accepted_or_refused(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    path = ROOT / "configs" / f"{name}.yaml"
    sections = yaml.safe_load(path.read_text())
    refused = 0
    for section, keys in sections.items():
        for key in keys if isinstance(keys, dict) else ():
            for junk in chance.sample(JUNK, 4):
                try:
                    LOADERS[name](path, {f"DGPU__{section}__{key}".upper(): str(junk)})
                except ConfigError as error:
                    refused += 1
                    assert str(error).strip()
    assert refused > 20
