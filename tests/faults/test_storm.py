"""A short storm in every run of the suite. Longer ones: `python -m tests.faults.storm --rounds 500`."""

from __future__ import annotations

import os

import pytest
from tests.faults.storm import Storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

ROUNDS = int(os.environ.get("DGPU_STORM_ROUNDS", "12"))


def test_kills_and_stops_of_every_process_lose_nothing_and_run_nothing_twice() -> None:
    seed = int(os.environ.get("DGPU_STORM_SEED", "0")) or int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    verdict = Storm(seed, print).run(ROUNDS)
    assert verdict.wrong == []
    assert verdict.rounds == ROUNDS
    assert verdict.acknowledged > ROUNDS
