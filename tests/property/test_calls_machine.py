"""Any sequence of commands with function calls, workers and tasks: what must hold after each of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from building import START, finished, gpus_of, node, returning, task
from building.calls import app, call, returned
from building.examples import fixed_and_random
from building.lockstep import Twins
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    Command,
    DrainNode,
    LoseNode,
    ReleaseNode,
    ReportStarted,
    ReportWorkers,
    ResumeNode,
    RunPass,
    SetTenant,
    Tick,
    WorkerReport,
)
from dgpu.core.digest import digest
from dgpu.core.events import CallReturned, Event, TaskPlaced
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.worker import LoadedModel
from dgpu.core.rejections import Rejection
from dgpu.core.replay import replay
from dgpu.core.rules.workers import MAX_QUEUED
from dgpu.core.state import ClusterState

NODES = ("n1", "n2")
MODELS = ("", "", "m1", "m2", "m3")
RULES = Settings(
    memory_margin_mb=0,
    default_timeout_ms=5_000,
    retry_delay_ms=100,
    max_retry_delay_ms=400,
    keep_finished=4,
    keep_finished_ms=2_000,
    worker_idle_ms=5_000,
    worker_turn_ms=1_000,
    max_models_per_gpu=1,
)
APPS = (
    app("a1", tenant="a", max_workers=2),
    app("a2", tenant="a", max_workers=1, share=0.5, memory_mb=4_096),
    app("b1", tenant="b", max_workers=3, priority=90),
    app("b2", tenant="b", gpus=2),
)
models = st.lists(
    st.builds(
        LoadedModel,
        name=st.sampled_from(MODELS[2:]),
        loading=st.booleans(),
        load_ms=st.sampled_from([0, 50, 5_000]),
    ),
    max_size=2,
    unique_by=lambda model: model.name,
)


class Calls(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.events: list[Event] = []
        self.at = START
        self.twins = Twins()

    def send(self, command: Command) -> tuple[Event, ...] | Rejection:
        decision = self.twins.execute(self.state, replace(command, at=self.at))
        if not isinstance(decision, Rejection):
            self.events += decision
        return decision

    @initialize()
    def begin(self) -> None:
        self.send(BeginEpoch(settings=RULES))
        for name in NODES:
            self.send(node(name, gpus=gpus_of(name, 2), cpus=4, ram_mb=2_048))

    @rule(ms=st.sampled_from([1, 50, 100, 1_000, 6_000]))
    def time_passes(self, ms: int) -> None:
        self.at += ms

    # people

    @rule(
        of=st.sampled_from(APPS),
        count=st.integers(1, 4),
        model=st.sampled_from(MODELS),
        retries=st.integers(0, 2),
    )
    def submit_calls(self, of: Any, count: int, model: str, retries: int) -> None:
        self.send(call(of, count=count, model=model, max_retries=retries))
        self.pass_runs(full=False)

    @rule(gpus=st.integers(0, 2), tenant=st.sampled_from(["a", "b"]))
    def submit_task(self, gpus: int, tenant: str) -> None:
        self.send(task(gpus, tenant=tenant))
        self.pass_runs(full=False)

    @precondition(lambda self: self.state.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.send(CancelTasks(task_ids=(data.draw(st.sampled_from(sorted(self.state.tasks))),)))

    @rule(
        tenant=st.sampled_from(["a", "b"]),
        gpus=st.sampled_from([None, 1, 2]),
        running=st.sampled_from([None, 1]),
    )
    def limit(self, tenant: Any, gpus: int | None, running: int | None) -> None:
        self.send(SetTenant(tenant=Tenant(id=tenant, max_gpus=gpus, max_running=running)))

    # nodes and agents

    @rule(
        name=st.sampled_from(NODES),
        kind=st.sampled_from([LoseNode, ReleaseNode, DrainNode, ResumeNode]),
    )
    def operate(self, name: Any, kind: Any) -> None:
        self.send(kind(node_id=name, **({} if kind is ResumeNode else {"reason": "silent"})))

    @rule(name=st.sampled_from(NODES), boot=st.sampled_from(["boot-1", "boot-1", "boot-2"]))
    def register(self, name: Any, boot: str) -> None:
        self.send(node(name, gpus=gpus_of(name, 2), cpus=4, ram_mb=2_048, boot=boot))

    @precondition(lambda self: self.state.workers)
    @rule(
        data=st.data(),
        ready=st.sampled_from([True, True, True, False]),
        loaded=models,
        down=st.integers(0, 9),
    )
    def report_worker(self, data: st.DataObject, ready: bool, loaded: list[LoadedModel], down: int) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.state.workers)))
        lease_id = self.state.tasks[task_id].lease_id
        report = WorkerReport(
            lease_id=lease_id, ready=ready, models=tuple(loaded), down="" if down else "silent"
        )
        self.send(ReportWorkers(workers=(report,)))
        self.pass_runs(full=False)

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data())
    def report_started(self, data: st.DataObject) -> None:
        self.send(ReportStarted(lease_id=data.draw(st.sampled_from(sorted(self.state.leases)))))

    @precondition(lambda self: self.state.leases)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        exit_code=st.sampled_from([0, 0, 1]),
        place=st.booleans(),
    )
    def report_finished(self, data: st.DataObject, outcome: Outcome, exit_code: int, place: bool) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        is_call = bool(self.state.leases[lease_id].worker)
        report = (
            returned(lease_id, outcome)
            if is_call
            else finished(lease_id, exit_code, outcome=outcome, signal=9)
        )
        decision = self.send(report)
        if is_call and isinstance(decision, tuple):
            ended = self.state.tasks[decision[-1].task_id].status.is_final
            assert ended == any(isinstance(event, CallReturned) for event in decision)
        if place:
            self.pass_runs(full=False)

    @rule(of=st.sampled_from([APPS[0], APPS[2]]), model=st.sampled_from(MODELS[1:]))
    def short_calls_queue(self, of: Any, model: str) -> None:
        """The app's workers are ready and have ended a call: then calls queue at them."""
        self.submit_calls(of, 4, "", 1)
        for worker in list(self.state.workers.values()):
            lease_id = self.state.tasks[worker.task_id].lease_id
            if worker.app_id == of.id and lease_id and not worker.down:
                self.send(ReportWorkers(workers=(WorkerReport(lease_id=lease_id, ready=True),)))
        self.pass_runs(full=False)
        for lease in [lease for lease in self.state.leases.values() if lease.worker]:
            self.send(returned(lease.id))
        self.submit_calls(of, 4, model, 1)

    @precondition(lambda self: any(lease.worker for lease in self.state.leases.values()))
    @rule(data=st.data(), ms=st.sampled_from([0, 1_000, 6_000]))
    def a_worker_ends_all_its_calls(self, data: st.DataObject, ms: int) -> None:
        hosts = sorted({lease.worker for lease in self.state.leases.values() if lease.worker})
        for lease_id in list(self.state.crews.calls_of(data.draw(st.sampled_from(hosts)))):
            self.send(returned(lease_id))
        self.at += ms
        self.pass_runs(full=False)

    # the scheduler

    @rule(full=st.booleans())
    def pass_runs(self, full: bool) -> None:
        decision = self.send(RunPass(full=full))
        assert isinstance(decision, tuple)
        for event in decision:
            if isinstance(event, TaskPlaced) and event.worker:
                assert self.state.crews.queued(event.worker) <= MAX_QUEUED

    @rule(takes_over=st.integers(0, 4))
    def tick(self, takes_over: int) -> None:
        self.send(Tick(history_at=self.at))
        if takes_over == 0:
            self.send(BeginEpoch(settings=RULES))
            for command in returning(self.state):
                self.send(command)

    # what holds after each step

    @invariant()
    def the_state_is_sound(self) -> None:
        check_invariants(self.state)

    @invariant()
    def a_replay_is_equal(self) -> None:
        assert digest(replay(self.events)) == digest(self.state)

    @invariant()
    def foresight_changes_nothing_and_explains_every_wait(self) -> None:
        before = digest(self.state)
        for waiting in list(self.state.tasks.values()):
            if waiting.status is TaskStatus.PENDING:
                assert isinstance(explain(self.state, waiting.id, self.at), Explanation)
        forecast(self.state, self.at)
        assert digest(self.state) == before

    @invariant()
    def no_app_has_more_workers_than_it_may(self) -> None:
        for app_id, crew in self.state.crews.by_app.items():
            staying = [
                task_id
                for task_id in crew.workers
                if not self.state.workers[task_id].down
                and not self.state.tasks[task_id].cancelling
                and not (
                    (lease := self.state.leases.get(self.state.tasks[task_id].lease_id)) and lease.stopping
                )
            ]
            assert len(staying) <= self.state.apps[app_id].max_workers


TestCalls, TestCallsAtRandom = fixed_and_random(Calls, examples=20, steps=30)
