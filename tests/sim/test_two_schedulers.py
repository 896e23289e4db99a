"""Two schedulers, one engine, in virtual time: the production machines, an engine that loses and delays, a bad network.

DGPU_SIM_SEEDS runs more seeds, DGPU_SIM_FIRST begins elsewhere. A failing seed fails again:
DGPU_SIM_FIRST=<seed> DGPU_SIM_SEEDS=1 pytest tests/sim/test_two_schedulers.py
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from dgpu.agent.epoch import Joined
from dgpu.sim.checkers import Violation
from dgpu.sim.two.simulate import simulate_two
from sim import two_mutants as mutants

SEEDS = int(os.environ.get("DGPU_SIM_SEEDS", "60"))
FIRST = int(os.environ.get("DGPU_SIM_FIRST", "0"))
SHARDS = min(8, SEEDS)
MUTANT_SEEDS = 60

lived = functools.cache(simulate_two)  # two tests look at the same worlds


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_promise_holds_whichever_scheduler_leads(shard: int) -> None:
    for seed in range(FIRST + shard, FIRST + SEEDS, SHARDS):
        print(f"seed {seed}")
        assert lived(seed).tasks > 0


def test_the_worlds_are_as_bad_as_they_claim() -> None:
    """A simulation in which nothing happens proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        summary = lived(seed)
        seen.update(summary.faults)
        seen["second runs"] += summary.runs - summary.tasks
        seen["master changes"] += summary.epochs - 1
        seen["applied late"] += summary.applied_late
        seen["lost calls"] += summary.lost_calls
        seen["reads of ended tasks"] += summary.reads_of_ends
        seen["freezes"] += summary.freezes
        seen["snapshots in the engine"] += summary.snapshots
        seen["snapshots fetched"] += summary.fetched
        seen["writes without room"] += summary.full_disks
    assert min(seen.values()) >= 5, seen
    assert seen["master changes"] >= 100


def test_a_seed_gives_the_same_world_again_also_in_another_process() -> None:
    program = "from dgpu.sim.two.simulate import simulate_two; print(simulate_two(7))"
    worlds = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert worlds == {str(simulate_two(7))}


# Mutants: each breaks one rule, and the checkers must notice. `first`: where a catch is near, to save time.
# Rules that have the clock as a second line of defence are judged by broken promises alone (`checks_clock=False`).


def test_an_answer_before_the_commit_is_caught() -> None:
    assert _caught("acknowledged but is lost", make_scheduler=mutants.AnswersTooEarly, checks_clock=False)


def test_an_ungated_heartbeat_acknowledgement_is_caught() -> None:
    """A deposed master would renew task leases that its successor gives away."""
    assert _caught(
        "runs under lease",
        first=40,
        make_scheduler=mutants.AcknowledgesHeartbeatsAtOnce,
        only_fault="master_keeps_one_node",
        faults=2,
        checks_clock=False,
    )


def test_an_order_before_the_commit_is_caught() -> None:
    """A node would run a task under a lease that the journal does not know."""
    assert _caught(
        "no such lease",
        make_scheduler=mutants.OrdersTooEarly,
        only_fault="master_keeps_one_node",
        faults=2,
        checks_clock=False,
    )


def test_contact_times_from_the_start_of_the_process_are_caught() -> None:
    """A standby that has waited for long would release the leases of a lost node at once."""
    assert _caught(
        "runs under lease",
        first=60,
        make_scheduler=mutants.CountsFromProcessStart,
        only_fault="node_is_cut_off_and_master_dies",
    )


def test_a_keepalive_taken_for_a_confirmation_is_caught() -> None:
    """A deposed member of the engine answers keepalives, and a deposed master would answer reads."""
    assert _caught(
        "acknowledged but is lost",
        make_candidacy=mutants.TrustsKeepalives,
        only_fault="engine_renews_from_memory",
        checks_clock=False,
    )


def test_an_unknown_outcome_taken_for_a_failure_is_caught() -> None:
    assert _caught("", make_candidacy=mutants.TakesUnknownForFailed, checks_clock=False)


def test_a_standby_that_leads_without_the_tail_is_caught() -> None:
    assert _caught("was committed after", make_candidacy=mutants.PromotesWithoutTail)


def test_a_local_write_before_the_commit_is_caught() -> None:
    assert _caught("but the journal has only", make_candidacy=mutants.WritesLocallyFirst)


def test_a_commit_that_does_not_compare_the_head_is_caught() -> None:
    """A delayed copy of an earlier transaction would rewind the journal."""
    assert _caught("was committed after", make_truth=mutants.IgnoresHead, only_fault="engine_is_slow")


def test_an_agent_that_ignores_epochs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rules already keep an old master silent, so this one welcomes nodes at once. The agents must refuse it."""
    world: dict[str, Any] = {
        "make_scheduler": mutants.WelcomesAtOnce,
        "only_fault": "nodes_change_sides",
        "checks_clock": False,
    }
    for seed in range(10):
        try:
            simulate_two(seed, **world)
        except Violation as violation:
            assert "obeyed epoch" not in str(violation)
    monkeypatch.setattr(Joined, "refuses", lambda _self, _welcome: "")
    assert _caught("obeyed epoch", **world)


def test_a_lease_id_that_is_given_again_is_caught() -> None:
    """A late report or order of the earlier lease would fit the later one."""
    assert _caught("was given before", make_scheduler=mutants.ReusesLeaseIds)


def test_a_snapshot_with_a_group_that_is_not_committed_is_caught() -> None:
    """The groups before it are deleted, so every later scheduler would begin with it."""
    assert _caught("is not the state there", make_life=mutants.SnapshotsItsMemory)


def _caught(words: str, *, first: int = 0, **values: Any) -> str:
    """The violation with these words; empty: none was found."""
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            simulate_two(seed, **values)
        except Violation as violation:
            print(violation)
            if words in str(violation):
                return str(violation)
    return ""
