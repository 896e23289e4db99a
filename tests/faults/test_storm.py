"""A short storm in every run of the suite, and short forms of the programs about functions. Longer ones: `python -m
tests.faults.storm --rounds 500`.
"""

from __future__ import annotations

import os

import pytest
from tests.faults.call_kills import CallKills
from tests.faults.storm import Storm
from tests.faults.warm_memory import WarmMemory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

ROUNDS = int(os.environ.get("DGPU_STORM_ROUNDS", "12"))


def test_kills_and_stops_of_every_process_lose_nothing_and_run_nothing_twice() -> None:
    seed = int(os.environ.get("DGPU_STORM_SEED", "0")) or int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    verdict = Storm(seed, print).run(ROUNDS)
    assert verdict.wrong == []
    assert verdict.rounds == ROUNDS
    assert verdict.acknowledged > ROUNDS


def test_an_exclusive_task_after_a_warm_worker_never_finds_used_memory() -> None:
    """Longer: `python -m tests.faults.warm_memory --tasks 1000`."""
    verdict = WarmMemory(1, print).run(4)
    assert verdict.wrong == []
    assert (verdict.tasks, verdict.found_used, verdict.workers_left) == (4, 0, {"gave_way": 4})


def test_kills_while_calls_run_lose_none_and_run_none_twice() -> None:
    """Longer: `python -m tests.faults.call_kills --rounds 200`."""
    verdict = CallKills(3, print).run(3)
    assert verdict.wrong == []
    assert verdict.calls >= 12
    assert verdict.rounds == sum(verdict.faults.values()) == 3
