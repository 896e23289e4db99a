"""A reservation is never delayed by a backfilled task, whatever comes and however early tasks end."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec.structs import replace

from building import START, node, returning, spec
from building.examples import fixed_and_random
from building.lockstep import Twins
from dgpu.core.commands import BeginEpoch, ReportFinished, ReportStarted, RunPass, SubmitTasks
from dgpu.core.decide.schedule import pass_due
from dgpu.core.digest import digest
from dgpu.core.events import Event, GangPlaced, TaskPlaced, TasksReserved
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, TaskSpec
from dgpu.core.rejections import Rejection
from dgpu.core.replay import replay
from dgpu.core.rules.durations import KILL_GRACE_MS, RELEASE_MS
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState
from property.test_core_machine import RULES
from property.test_life_machine import Lives

OVER_MS = KILL_GRACE_MS + RELEASE_MS
MANY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])

limits = st.sampled_from([5_000, 20_000, 60_000, 300_000])
shapes = st.one_of(
    st.builds(
        spec,
        st.sampled_from([1, 1, 1, 2, 3, 4]),
        timeout_ms=limits,
        cpus=st.sampled_from([0, 0, 2, 6]),
        nodes=st.sampled_from([1, 1, 1, 2]),
    ),
    st.builds(spec, st.just(1), share=st.sampled_from([0.3, 0.6]), timeout_ms=limits),
)


class Arrival(NamedTuple):
    after_ms: int
    number: int
    asked: TaskSpec
    part: int  # of its time limit that it really runs, in tenths; 11: it must be killed


arrivals = st.lists(
    st.builds(Arrival, st.sampled_from([0, 0, 1_000, 30_000]), st.integers(1, 3), shapes, st.integers(1, 11)),
    min_size=4,
    max_size=14,
)


class World:
    """Time passes by itself here: tasks end when they do, and every change is followed by a pass."""

    def __init__(self, nodes: list[int], rules: Settings) -> None:
        self.state = ClusterState()
        self.twins = Twins()
        self.at = START
        self.journal: list[Event] = []
        self.parts: dict[int, int] = {}
        self.ends: list[tuple[int, int]] = []
        self.promised: dict[int, int] = {}  # by task: the first time that its reservation said
        self.started: dict[int, int] = {}
        self.do(BeginEpoch(settings=rules))
        for number, gpus in enumerate(nodes):
            self.do(node(f"n{number}", gpus=gpus, cpus=8))

    def do(self, command: Any) -> tuple[Event, ...]:
        events = self.tried(command)
        assert not isinstance(events, Rejection), events
        return events

    def tried(self, command: Any) -> tuple[Event, ...] | Rejection:
        decision = self.twins.execute(self.state, replace(command, at=self.at))
        if not isinstance(decision, Rejection):
            self.journal += decision
        return decision

    def submit(self, arrival: Arrival) -> None:
        first = self.state.next_task_id
        self.do(SubmitTasks(entries=((arrival.number, arrival.asked),)))
        for task_id in range(first, first + arrival.number):
            self.parts[task_id] = arrival.part

    def settle(self) -> None:
        for _ in range(10):
            for event in self.do(RunPass()):
                self.note(event)
            if not pass_due(self.state):
                return
        raise AssertionError("passes do not come to an end")

    def note(self, event: Event) -> None:
        if isinstance(event, TasksReserved):
            for made in event.made:
                assert made.at <= self.promised.setdefault(made.task_id, made.at), made
        if isinstance(event, TaskPlaced | GangPlaced):
            ranks = event.ranks if isinstance(event, GangPlaced) else (event,)
            for rank in ranks:
                self.do(ReportStarted(lease_id=rank.lease_id))
            task = self.state.tasks[event.task_id]
            self.started[task.id] = self.at
            part = self.parts[task.id]
            lasts = task.timeout_ms + OVER_MS if part == 11 else task.timeout_ms * part // 10
            heappush(self.ends, (self.at + lasts, task.id))

    def pass_time(self, until: int | None) -> None:
        while self.ends and (until is None or self.ends[0][0] <= until):
            self.at, task_id = heappop(self.ends)
            for lease_id in self.state.leases_of(self.state.tasks[task_id]):
                self.do(ReportFinished(lease_id=lease_id, outcome=Outcome.EXITED))
            self.settle()
        self.at = self.at if until is None else until

    def restart(self) -> None:
        """All that is left is the journal."""
        again = replay(self.journal)
        assert digest(again) == digest(self.state)
        assert again.reservations == self.state.reservations
        self.state, self.twins = again, Twins()
        self.do(BeginEpoch(settings=again.settings))
        for command in returning(self.state):
            self.do(command)


@MANY
@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3),
    arrivals,
    st.sampled_from([1, 2, 8]),
    st.sampled_from(Placement),
    st.integers(0, 20),
)
@example(  # those of a size who come later than another one were taken for asked
    nodes=[1],
    coming=[
        Arrival(0, 1, spec(1, timeout_ms=5_000), 1),
        Arrival(0, 1, spec(1, share=0.3, timeout_ms=5_000), 1),
        Arrival(0, 1, spec(1, timeout_ms=5_000, nodes=2), 1),
        Arrival(0, 2, spec(1, timeout_ms=5_000, nodes=2), 1),
        Arrival(0, 1, spec(2, timeout_ms=5_000, cpus=6), 1),
    ],
    reservations=2,
    placement=Placement.BALANCED,
    restart=0,
)
@example(  # cpus were to be had after another reservation, and then, later, beside it
    nodes=[4, 2, 4],
    coming=[
        Arrival(0, 2, spec(2, timeout_ms=300_000, cpus=6, nodes=2), 10),
        Arrival(0, 1, spec(2, timeout_ms=20_000, cpus=2), 9),
        Arrival(0, 3, spec(1, share=0.6, timeout_ms=300_000), 10),
        Arrival(1_000, 2, spec(1, share=0.3, timeout_ms=5_000), 11),
        Arrival(0, 1, spec(1, share=0.3, timeout_ms=5_000), 9),
        Arrival(1_000, 2, spec(1, share=0.6, timeout_ms=60_000), 3),
        Arrival(30_000, 1, spec(3, timeout_ms=5_000, cpus=2), 2),
        Arrival(30_000, 1, spec(2, timeout_ms=60_000), 9),
        Arrival(0, 1, spec(1, timeout_ms=5_000, nodes=2), 7),
        Arrival(0, 3, spec(1, timeout_ms=300_000, cpus=2), 5),
        Arrival(0, 3, spec(2, timeout_ms=60_000, cpus=2, nodes=2), 3),
        Arrival(0, 2, spec(1, share=0.6, timeout_ms=5_000), 8),
        Arrival(0, 3, spec(3, timeout_ms=60_000, cpus=6), 5),
        Arrival(0, 1, spec(1, share=0.6, timeout_ms=5_000), 1),
    ],
    reservations=8,
    placement=Placement.PACK,
    restart=1,
)
def test_a_reservation_is_never_delayed(
    nodes: list[int], coming: list[Arrival], reservations: int, placement: Placement, restart: int
) -> None:
    world = World([4, *nodes], Settings(memory_margin_mb=0, reservations=reservations, placement=placement))
    for number, arrival in enumerate(coming):
        if number == restart:
            world.restart()
        world.pass_time(world.at + arrival.after_ms)
        if arrival.asked.shape.nodes > len(nodes) + 1 or arrival.asked.shape.gpus > 4:
            continue
        if (
            arrival.asked.shape.nodes > 1
            and sum(each >= arrival.asked.shape.gpus for each in [4, *nodes]) < 2
        ):
            continue
        world.submit(arrival)
        world.settle()
        check_invariants(world.state)
        assert len(world.state.reservations) <= reservations
    world.pass_time(None)
    assert not world.state.reservations
    assert not world.state.waiting_count, "nobody starves"
    for task_id, promised_at in world.promised.items():
        assert world.started[task_id] <= promised_at, (task_id, promised_at)


class Reserving(Lives):
    """Anything may happen while reservations are held: what the other machine knows of the order is not asked here."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = replace(RULES, reservations=3)

    @rule(limit=st.sampled_from([0, 1, 2, 1_000, 1_000]), full=st.booleans())
    def pass_runs(self, limit: int, full: bool) -> None:
        assert isinstance(self.send(RunPass(at=self.at, limit=limit, full=full)), tuple)

    @rule(
        minutes=st.sampled_from([0, 1_000]),
        reservations=st.sampled_from([0, 1, 3]),
        placement=st.sampled_from(Placement),
    )
    def ageing_changes(self, minutes: int, reservations: int, placement: Placement) -> None:
        self.rules = replace(RULES, ageing_ms=minutes, reservations=reservations, placement=placement)
        self.send(BeginEpoch(at=self.at, settings=self.rules))

    @invariant()
    def every_wait_has_a_reason_that_holds(self) -> None:
        """After a pass that went to its end nobody waits without a reason."""
        fork = self.state.fork()
        for _ in range(10):
            execute(fork, RunPass(at=self.at))
            if not pass_due(fork):
                break
        assert not pass_due(fork), "passes do not come to an end"
        check_invariants(fork)
        for task_id in queue(fork, limit=1_000):
            told = explain(fork, task_id, self.at)
            assert isinstance(told, Explanation)
            assert {each.code for each in told.blockers} - {"tasks_ahead"}, told


TestReserving, TestReservingAtRandom = fixed_and_random(Reserving, examples=60, steps=40)
