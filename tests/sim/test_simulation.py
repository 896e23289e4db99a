"""Whole clusters in virtual time: the production machines, a bad network, a bad disk, and processes that die.

DGPU_SIM_SEEDS runs more seeds, DGPU_SIM_FIRST begins elsewhere. A failing seed fails again:
DGPU_SIM_FIRST=<seed> DGPU_SIM_SEEDS=1 pytest tests/sim
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import msgspec
import pytest

from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import LeaseState
from dgpu.agent.node_lease import NodeLease
from dgpu.agent.run.runner import RunEnd
from dgpu.agent.session import Session
from dgpu.core import identity
from dgpu.core.commands import HeldLease, ReadWallClock
from dgpu.core.decide import endings
from dgpu.core.decide import node as decide_node
from dgpu.core.decide.time import LOSS_ACCEPTED
from dgpu.core.events import Event, RankEnded
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Outcome, Task
from dgpu.core.state import ClusterState
from dgpu.journal.errors import CorruptJournal
from dgpu.journal.memory import MemoryJournal
from dgpu.service.machine import agents
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import (
    AgentSaid,
    Begin,
    DecideQueued,
    HistoryAdvanced,
    Input,
    NotStored,
    Read,
    TimePassed,
)
from dgpu.service.machine.outputs import Append, Output, ReadNow, Reply, Tell
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.task_output import intake
from dgpu.service.task_output.coverage import Coverage
from dgpu.service.task_output.intake import OutputIntake
from dgpu.service.task_output.intake_words import IntakeInput, IntakeOutput, PartsStored
from dgpu.sim.checkers import Violation
from dgpu.sim.keeper import SimKeeper
from dgpu.sim.simulate import Loss, simulate
from dgpu.wire.proto import agent_pb2 as pb

SEEDS = int(os.environ.get("DGPU_SIM_SEEDS", "120"))
FIRST = int(os.environ.get("DGPU_SIM_FIRST", "0"))
SHARDS = min(8, SEEDS)
MUTANT_SEEDS = 300

lived = functools.cache(simulate)  # two tests look at the same worlds


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_promise_holds_whatever_dies(shard: int) -> None:
    for seed in range(FIRST + shard, FIRST + SEEDS, SHARDS):
        print(f"seed {seed}")
        assert lived(seed).tasks > 0


def test_the_worlds_are_as_bad_as_they_claim() -> None:
    """A simulation in which nothing happens proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(80):
        summary = lived(seed)
        seen.update(summary.faults)
        seen["torn tails"] += summary.torn_tails
        seen["freezes"] += summary.freezes
        seen["second runs"] += summary.runs - summary.tasks
        seen["restarts"] += summary.scheduler_starts - 1
        seen["forgotten"] += summary.forgotten
        seen["timeouts"] += summary.timeouts
        seen["reads of ended tasks"] += summary.reads_of_ends
        seen["outputs"] += summary.outputs
        seen["outputs in parts"] += summary.output_gaps
    assert min(seen.values()) >= 10, seen
    assert seen["torn tails"] >= 10
    assert seen["freezes"] >= 10


def test_a_seed_gives_the_same_world_again_also_in_another_process() -> None:
    program = "from dgpu.sim.simulate import Loss, simulate; print(simulate(7))"
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
    assert worlds == {str(simulate(7))}


# Mutants: each breaks one rule, and the checkers must notice.


class RequeuesAtOnce(Scheduler):
    """Gives the leases of a lost node away without waiting for their end."""

    def __init__(self, state: ClusterState, *, rules: AgentRules, **values: Any) -> None:
        super().__init__(state, rules=rules, **values)
        hasty = msgspec.structs.replace(rules, task_lease_ms=0, lease_margin_ms=0)
        self._agents._contacts._rules = hasty


class AcknowledgesTooEarly(Scheduler):
    """Tells an agent that its reports are durable before they are."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        if isinstance(value, AgentSaid) and value.message.WhichOneof("body") == "reports":
            ack = pb.FromScheduler(reports_ack=pb.ReportsAck(seq=value.message.reports.seq))
            outputs.append(Tell(connection_id=value.connection_id, message=ack))
        return outputs


class AnswersTooEarly(Scheduler):
    """Answers a submit when it is decided, not when it is durable."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        group = self._commit.in_flight
        if (
            isinstance(value, DecideQueued)
            and group is not None
            and any(isinstance(o, Append) for o in outputs)
        ):
            replies = [
                Reply(request_id=origin, result=result)
                for origin, result in group.results
                if isinstance(origin, int) and isinstance(result, tuple)
            ]
            results = tuple(
                pair
                for pair in group.results
                if not isinstance(pair[0], int) or not isinstance(pair[1], tuple)
            )
            self._commit.in_flight = msgspec.structs.replace(group, results=results)
            outputs = [*replies, *outputs]
        return outputs


class ReadsTooEarly(Scheduler):
    """Lets readers look at a group that may never become durable."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        if isinstance(value, Read):
            return [ReadNow(request_id=value.request_id)]
        return super().on_input(value, now)


class ForgetsTooEarly(Scheduler):
    """Takes tasks out of the memory before the history has them."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        if isinstance(value, TimePassed):
            super().on_input(HistoryAdvanced(at=now), now)
        return super().on_input(value, now)


class PlacesAtOnce(Scheduler):
    """Does not wait for runs of lost leases to end or to be frozen."""

    def __init__(self, state: ClusterState, *, rules: AgentRules, **values: Any) -> None:
        super().__init__(state, rules=rules, **values)
        self._rules = msgspec.structs.replace(rules, task_lease_ms=0, lease_margin_ms=0)


class ForgetsToWait(Scheduler):
    """Waits only if it was told of the loss itself, not when the scheduler before it died while it waited."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        if isinstance(value, Begin) and not value.lost_tail and self.state.no_pass_before != LOSS_ACCEPTED:
            self._rules = msgspec.structs.replace(self._rules, task_lease_ms=0, lease_margin_ms=0)
            outputs = super().on_input(msgspec.structs.replace(value, wall=None), now)
            self._commit.offer(None, ReadWallClock(span=value.wall))
            return outputs
        return super().on_input(value, now)


@pytest.mark.parametrize("mutant", [RequeuesAtOnce, AcknowledgesTooEarly, ForgetsTooEarly])
def test_a_scheduler_that_breaks_a_rule_is_caught(mutant: type[Scheduler]) -> None:
    assert _is_caught(make_scheduler=mutant)


@pytest.mark.parametrize("mutant", [AnswersTooEarly, ReadsTooEarly])
def test_a_scheduler_that_says_what_is_not_durable_is_caught(mutant: type[Scheduler]) -> None:
    assert _is_caught(make_scheduler=mutant, only_fault="scheduler_dies_writing")


def test_an_agent_that_counts_its_lease_from_the_arrival_of_an_answer_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that lay in a buffer would renew a lease that was given away. The mutant also forgets the silence,
    after which nothing is obeyed: either rule is enough.
    """
    honest = Session._on_received

    def from_arrival(self: Session, call: Any, message: Any, now_ms: int) -> Any:
        if message.WhichOneof("body") == "heartbeat_ack":
            call.stream.beats[message.heartbeat_ack.seq] = call.stream.last_word_ms = now_ms
        return honest(self, call, message, now_ms)

    monkeypatch.setattr(Session, "_on_received", from_arrival)
    assert _is_caught(only_fault="falls_asleep_and_is_cut_off", first=60)


def test_a_keeper_that_hangs_without_a_guard_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else can freeze or end its tasks before they are given to another node."""
    monkeypatch.setattr(SimKeeper, "_watch_lease", lambda _self, _hang: None)
    assert _is_caught(only_fault="keeper_hangs_and_is_cut_off")


def test_a_keeper_that_starts_withdrawn_orders_when_it_wakes_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that takes an order for ended because its deadline is over must be right."""
    honest = Lifecycle._withdraw_late

    def too_sure(self: Lifecycle, now_ms: int) -> Any:
        late = [lease for lease in self._leases.values() if lease.state is LeaseState.STARTING]
        outputs = honest(self, now_ms)
        ends = [
            RunEnd(lease_id=lease.order.lease_id, outcome=Outcome.STOPPED, at_ms=now_ms)
            for lease in late
            if lease.state is LeaseState.STOPPING
        ]
        return outputs + self._on_ended(ends, now_ms)

    monkeypatch.setattr(Lifecycle, "_withdraw_late", too_sure)
    monkeypatch.setattr("dgpu.sim.keeper.START_MS", 10**9)
    assert _is_caught(only_fault="keeper_hangs")


@pytest.mark.patches_core
def test_a_gang_that_starts_again_before_all_its_ranks_have_ended_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(_state: ClusterState, task: Task, _lease: Lease, ended: RankEnded) -> tuple[Event, ...]:
        return (ended, endings.requeued(task, ended.at, reason="node_lost"))

    monkeypatch.setattr(endings, "_end_rank", at_once)
    assert _is_caught()


@pytest.mark.parametrize("loses", ["state", "tail"])
def test_no_run_of_another_journal_is_taken_for_one_of_this(loses: Loss) -> None:
    """A new state directory or a rewound journal, while keepers still hold leases of before."""
    for seed in range(FIRST, FIRST + SEEDS // 4):
        print(f"seed {seed}")
        assert simulate(seed, loses=loses).runs > 0


@pytest.mark.parametrize(
    ("loses", "seed"),
    [
        ("tail", 50),
        ("tail", 53),
        ("tail", 56),
        ("state", 1277),
        ("state", 1433),
        ("state", 1519),
        ("", 5583),
    ],
)
def test_worlds_that_once_broke_a_promise(loses: Loss, seed: int) -> None:
    """A wait that was forgotten, an attempt that was ordered twice, output of another cluster or deleted too early."""
    assert simulate(seed, loses=loses).runs > 0


@pytest.mark.patches_core
@pytest.mark.parametrize("loses", ["state", "tail"])
def test_numbers_that_two_journals_share_are_caught(monkeypatch: pytest.MonkeyPatch, loses: Loss) -> None:
    """As it was once: leases were counted from 1 in every journal, and matched by their number alone."""

    def by_number(state: ClusterState, held: HeldLease) -> bool:
        return held.lease_id in state.leases

    monkeypatch.setattr(identity, "first_lease_of", lambda _: LeaseId(1))
    monkeypatch.setattr(decide_node, "is_same_run", by_number)
    monkeypatch.setattr(agents, "is_same_run", by_number)
    monkeypatch.setattr(NodeLease, "answers", lambda *_: True)
    assert _is_caught(loses=loses)


@pytest.mark.parametrize("mutant", [PlacesAtOnce, ForgetsToWait])
def test_a_scheduler_that_does_not_wait_after_a_lost_tail_is_caught(mutant: type[Scheduler]) -> None:
    """A node may still run a task under a lease that the journal does not know any more."""
    assert _is_caught(make_scheduler=mutant, loses="tail", first=45)


@pytest.mark.patches_core
def test_an_attempt_that_is_ordered_again_although_its_end_is_lost_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output of two runs would be stored as that of one attempt."""
    monkeypatch.setattr(decide_node, "is_before_loss", lambda *_: False)
    assert _is_caught(loses="tail", first=50)


class KeepsWhatWasNotStored(Scheduler):
    """Goes on with a group in memory that the disk refused."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        if isinstance(value, NotStored):
            value = msgspec.structs.replace(value, state=self.state.fork())
        return super().on_input(value, now)


def test_a_scheduler_that_keeps_a_group_without_room_is_caught() -> None:
    assert _is_caught(make_scheduler=KeepsWhatWasNotStored, only_fault="disk_is_full")


def test_a_start_that_only_syncs_what_it_read_after_a_failed_sync_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pages count as clean: the next power cut leaves a hole in front of acknowledged groups."""
    monkeypatch.setattr(MemoryJournal, "_rewrite_last", lambda _self: None)
    with pytest.raises((Violation, CorruptJournal)):
        for seed in range(MUTANT_SEEDS):
            simulate(seed, only_fault="sync_fails")


def test_an_intake_that_takes_output_from_any_node_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_why_foreign", lambda *_: "")
    assert _is_caught(only_fault="output_is_forged")


class StoredTooEarly(OutputIntake):
    """Tells the agent that its output is stored although the disk was full."""

    def on_input(self, value: IntakeInput, now_ms: int) -> list[IntakeOutput]:
        if isinstance(value, PartsStored):
            value = PartsStored(ok=True)
        return super().on_input(value, now_ms)


def test_an_intake_that_forgets_a_full_disk_is_caught() -> None:
    assert _is_caught(make_intake=StoredTooEarly, only_fault="output_disk_is_full")


def test_a_store_that_skips_all_behind_a_last_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that stores more after a restart would tell the node to delete bytes that only the node has."""
    take = Coverage.take
    monkeypatch.setattr(Coverage, "take", lambda self, part: take(self, part) if self._end is None else [])
    assert _is_caught(first=177)


def _is_caught(*, first: int = 0, **values: Any) -> bool:
    """`first`: where a catch is near, to save time."""
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            simulate(seed, **values)
        except Violation as violation:
            print(violation)
            return True
    return False
