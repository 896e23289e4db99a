"""How a state machine runs: over examples that are always the same, and over some of the run's own seed."""

from __future__ import annotations

import os
import unittest

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def fixed_and_random(
    machine: type[RuleBasedStateMachine], *, examples: int, steps: int
) -> tuple[type[unittest.TestCase], type[unittest.TestCase]]:
    """The second one sees a fifth as many examples, or $DGPU_RANDOM_EXAMPLES: other ones in each run. tests/conftest.py
    prints the seed.
    """
    fixed = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    random = int(os.environ.get("DGPU_RANDOM_EXAMPLES", max(1, examples // 5)))
    return _case(machine, fixed), _case(machine, settings(fixed, derandomize=False, max_examples=random))


def _case(machine: type[RuleBasedStateMachine], runs: settings) -> type[unittest.TestCase]:
    class Case(machine.TestCase):  # type: ignore[misc, name-defined]
        settings = runs

    return pytest.mark.timeout(600 if "DGPU_RANDOM_EXAMPLES" not in os.environ else 0)(Case)
