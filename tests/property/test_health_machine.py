"""Any mix of faults, checks, ends of tasks and time: a card moves along the table of steps alone, and one that is out of
service is given to nobody.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from building import START, finished, gpus_of, node, spec
from building.examples import fixed_and_random
from dgpu.core.apply.table import apply
from dgpu.core.commands import (
    BeginEpoch,
    ChangeInventory,
    Command,
    LoseNode,
    ObserveGpu,
    RecoverGpu,
    ReportCheck,
    RunPass,
    SubmitTasks,
    Tick,
)
from dgpu.core.digest import digest
from dgpu.core.events import Event, GpuHealthChanged, TaskPlaced, TaskStopRequested
from dgpu.core.execute import execute
from dgpu.core.invariants import check_invariants
from dgpu.core.model.health import SERVING, STEPS, Cause, Health, HealthRules
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import PRIORITY_LEVELS, Outcome
from dgpu.core.rejections import Rejection
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState, gpu_status, next_tick_at

NODES = ("n1", "n2")
RULES = HealthRules(
    cool_down_ms=100,
    give_up_ms=2_000,
    check_timeout_ms=300,
    parole_runs=2,
    parole_ms=1_000,
    failures_in_a_row=2,
    max_quarantines=2,
    window_ms=5_000,
)


class Ward(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.follower = ClusterState()  # sees the events one by one, before they are applied
        self.events: list[Event] = []
        self.at = START
        self.faults = 0

    def send(self, command: Command) -> tuple[Event, ...] | Rejection:
        decision = execute(self.state, command)
        if not isinstance(decision, Rejection):
            for event in decision:
                self.judge(event)
                apply(self.follower, event)
            self.events += decision
        return decision

    def judge(self, event: Event) -> None:
        if isinstance(event, GpuHealthChanged):
            known = self.follower.health.get(event.gpu_id)
            assert event.before is (Health.TRUSTED if known is None else known.state)
            assert event.after in STEPS[event.before]
            assert event.evidence
            assert event.cause
        if isinstance(event, TaskPlaced):
            task = self.follower.tasks[event.task_id]
            priority = self.follower.shapes[task.shape_id].priority
            for gpu_id in event.gpu_ids:
                gpu = self.follower.gpus[gpu_id]
                assert gpu.health in SERVING
                assert not gpu.fault
                assert gpu.health is Health.TRUSTED or priority < PRIORITY_LEVELS["normal"]

    @initialize()
    def begin(self) -> None:
        self.send(BeginEpoch(at=self.at, settings=Settings(health=RULES)))
        for name in NODES:
            self.send(replace(node(name, gpus=2), at=self.at))

    @rule(ms=st.sampled_from([1, 50, 100, 300, 1_000, 3_000]))
    def time_passes(self, ms: int) -> None:
        self.at += ms
        self.send(Tick(at=self.at))
        due_at = self.state.next_health_at()
        assert due_at is None or due_at > self.at, "what was due is done: the service must not spin"

    @rule(
        gpus=st.sampled_from([1, 1, 2]),
        priority=st.sampled_from([10, 49, 50, 90]),
        tenant=st.sampled_from(["ann", "bob"]),
        command=st.sampled_from(["python a.py", "python b.py", "./c"]),
        allocation=st.sampled_from([False, False, True]),
    )
    def work(self, gpus: int, allocation: bool, **more: Any) -> None:
        self.send(SubmitTasks(at=self.at, entries=((1, spec(gpus, allocation=allocation, **more)),)))
        self.send(RunPass(at=self.at))

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data(), exit_code=st.sampled_from([0, 0, 1, 1]))
    def a_task_ends(self, data: st.DataObject, exit_code: int) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        stopped = self.state.leases[lease_id].stopping
        outcome = Outcome.STOPPED if stopped else Outcome.EXITED
        self.send(finished(lease_id, exit_code, outcome=outcome, at=self.at))
        self.send(RunPass(at=self.at))

    @precondition(lambda self: self.state.gpus)
    @rule(data=st.data(), cause=st.sampled_from(["xid", "lost", "hot", "ecc", "unheard of"]))
    def a_fault(self, data: st.DataObject, cause: str) -> None:
        self.faults += 1
        gpu_id = data.draw(st.sampled_from(sorted(self.state.gpus)))
        words = f"{cause}, fault {self.faults}"
        decision = self.send(
            ObserveGpu(at=self.at, gpu_id=gpu_id, foreign_mb=0, fault=words, fault_cause=cause)
        )
        assert isinstance(decision, tuple)
        if not self.state.gpus[gpu_id].gone:
            assert self.state.gpus[gpu_id].health not in SERVING
        for lease in self.state.leases.values():
            if gpu_id in lease.gpu_ids and not self.state.gpus[gpu_id].gone:
                assert lease.stopping, "what runs on a card that fell ill is told to end"
        stops = [event.lease_id for event in decision if isinstance(event, TaskStopRequested)]
        assert len(stops) == len(set(stops))

    @precondition(lambda self: self.state.gpus)
    @rule(data=st.data())
    def a_fault_is_gone(self, data: st.DataObject) -> None:
        gpu_id = data.draw(st.sampled_from(sorted(self.state.gpus)))
        self.send(ObserveGpu(at=self.at, gpu_id=gpu_id, foreign_mb=0))
        self.send(RunPass(at=self.at))

    @precondition(lambda self: self.state.health)
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]), stale=st.integers(0, 5))
    def a_check_is_answered(self, data: st.DataObject, ok: bool, stale: int) -> None:
        gpu_id = data.draw(st.sampled_from(sorted(self.state.health)))
        known = self.state.health[gpu_id]
        number = known.checks - (stale == 0)
        decision = self.send(ReportCheck(at=self.at, gpu_id=gpu_id, number=number, ok=ok, evidence="a check"))
        asked = known.state is Health.PROBING and number == known.checks and gpu_id in self.state.gpus
        assert isinstance(decision, tuple) == asked
        self.send(RunPass(at=self.at))

    @precondition(lambda self: self.state.gpus)
    @rule(data=st.data())
    def a_card_comes_to_parole(self, data: st.DataObject) -> None:
        gpu_id = data.draw(st.sampled_from(sorted(self.state.gpus)))
        self.faults += 1
        words = f"Xid {self.faults}"
        self.send(ObserveGpu(at=self.at, gpu_id=gpu_id, foreign_mb=0, fault=words, fault_cause="xid"))
        self.tasks_told_to_stop_end()
        self.send(ObserveGpu(at=self.at, gpu_id=gpu_id, foreign_mb=0))
        self.send(RecoverGpu(at=self.at, gpu_id=gpu_id))
        if gpu_id in self.state.health:
            number = self.state.health[gpu_id].checks
            self.send(ReportCheck(at=self.at, gpu_id=gpu_id, number=number, ok=True, evidence="well"))
        self.send(RunPass(at=self.at))

    @rule()
    def tasks_told_to_stop_end(self) -> None:
        for lease in [lease for lease in self.state.leases.values() if lease.stopping]:
            self.send(finished(lease.id, outcome=Outcome.STOPPED, at=self.at))
        self.send(RunPass(at=self.at))

    @precondition(lambda self: self.state.gpus)
    @rule(data=st.data())
    def an_operator_looks(self, data: st.DataObject) -> None:
        gpu_id = data.draw(st.sampled_from(sorted(self.state.gpus)))
        serves = self.state.gpus[gpu_id].health in SERVING
        assert isinstance(self.send(RecoverGpu(at=self.at, gpu_id=gpu_id)), Rejection) == serves

    @rule(name=st.sampled_from(NODES), cards=st.sampled_from([0, 1, 2, 2]))
    def a_list_changes(self, name: Any, cards: int) -> None:
        self.send(ChangeInventory(at=self.at, node_id=name, gpus=gpus_of(name, 2)[:cards]))

    @rule(name=st.sampled_from(NODES), lost=st.booleans())
    def a_node_comes_and_goes(self, name: Any, lost: bool) -> None:
        if lost:
            self.send(LoseNode(at=self.at, node_id=name, reason="silent"))
        else:
            held = tuple(lease.id for lease in self.state.node_leases(name))
            self.send(replace(node(name, gpus=2, held=held), at=self.at))

    @invariant()
    def the_state_is_sound_and_can_be_replayed(self) -> None:
        check_invariants(self.state)
        assert digest(replay(self.events)) == digest(self.state) == digest(self.follower)
        assert next_tick_at(self.state) == next_tick_at(ClusterState.from_parts(self.state.parts()))

    @invariant()
    def what_is_out_of_service_counts_as_an_error(self) -> None:
        for gpu in self.state.gpus.values():
            status = gpu_status(self.state, gpu)
            if gpu.health not in SERVING:
                assert status in {GpuStatus.ERROR, GpuStatus.OFFLINE}


TestWard, TestWardAtRandom = fixed_and_random(Ward, examples=100, steps=50)


def test_every_state_can_be_left_and_reached() -> None:
    assert set(STEPS) == set(Health)
    assert all(STEPS[state] for state in Health)
    assert set().union(*STEPS.values()) == set(Health)


def test_causes_have_their_own_words() -> None:
    assert len({cause.value for cause in Cause}) == len(Cause)
