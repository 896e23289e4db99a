"""Worlds with function calls and workers: no call runs twice at once, every call ends, tenants share no worker.

More seeds: `python -m tests.sim.many --calls --seeds 1000`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dgpu.agent.workers.machine import Workers
from dgpu.core.model.app import App
from dgpu.core.rules import workers as rules
from dgpu.core.rules.workers import Seat
from dgpu.core.state import ClusterState
from dgpu.sim.checkers import Violation
from dgpu.sim.simulate import simulate

SEEDS = 5
CAUGHT_WITHIN = 30


def test_every_promise_about_calls_holds_whatever_dies() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        print(f"seed {seed}")
        summary = simulate(seed, has_calls=True)
        seen.update(summary.faults)
        seen["calls"] += summary.calls
    assert seen["calls"] >= 40 * SEEDS
    assert min(seen["worker_dies"], seen["worker_hangs"], seen["worker_is_cut_off"]) >= 2


def test_a_node_that_registers_before_it_knows_its_calls_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "are_known", property(lambda _self: True))
    assert "runs under lease" in _caught(only_fault="agent_dies")


@pytest.mark.patches_core
def test_a_scheduler_that_ignores_apps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seats = rules.seats

    def of_all(state: ClusterState, _app: App, at: int) -> list[Seat]:
        return [seat for app in state.apps.values() for seat in seats(state, app, at)]

    monkeypatch.setattr(rules, "seats", of_all)
    assert "got the call" in _caught()


def _caught(only_fault: str = "") -> str:
    for seed in range(CAUGHT_WITHIN):
        try:
            simulate(seed, has_calls=True, only_fault=only_fault)
        except Violation as violation:
            return str(violation)
    return "nothing"
