"""Random worlds decide as they did when they were recorded: each event, each refusal, and each answer of `why`,
forecasts and what-if. A change of the core that is meant to change nothing is held to that.
"""

from __future__ import annotations

import json

import pytest

from building.recorded import FILE, NOTED, SEEDS, decided

RECORDED = json.loads(FILE.read_text())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_recorded_world_decides_as_before(seed: int) -> None:
    for number, (now, before) in enumerate(zip(decided(seed), RECORDED[str(seed)], strict=True)):
        assert now == before, (
            f"world {seed} decides otherwise between steps {number * NOTED} and {(number + 1) * NOTED}; "
            "if that is intended, record the worlds again: see tests/building/recorded.py"
        )
