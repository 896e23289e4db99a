"""Any sequence of commands: what must hold after each of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from building import START, finished, gpu, gpus_of, node, returning, shape, spec, task
from building.examples import fixed_and_random
from building.liking import Liking
from building.lockstep import Twins
from building.oracle import Oracle, without_broken
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    ChangeInventory,
    Command,
    DrainNode,
    HeldLease,
    LoseNode,
    ObserveGpu,
    RecordAudit,
    ReleaseNode,
    RemoveNode,
    ReportStarted,
    ResumeNode,
    RunPass,
    SubmitTasks,
    Tick,
)
from dgpu.core.decide.table import decide
from dgpu.core.digest import digest
from dgpu.core.events import Audited, Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.demand import demand_of
from dgpu.core.model.node import Gpu, NodeStatus
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, Restart, TaskStatus
from dgpu.core.rejections import Rejection, StaleLease
from dgpu.core.replay import replay
from dgpu.core.rules.order import position, queue
from dgpu.core.state import ClusterState, next_wake_at

NODES = ("n1", "n2", "n3")
RULES = Settings(
    default_timeout_ms=5_000,
    max_timeout_ms=20_000,
    retry_delay_ms=100,
    max_retry_delay_ms=400,
    keep_finished=4,
    keep_finished_ms=2_000,
    idempotency_ms=3_000,
    max_waiting=40,
    max_leases=5,
)

specs = st.builds(
    spec,
    st.sampled_from([0, 1, 1, 1, 2, 3]),
    priority=st.sampled_from([10, 50, 90]),
    tenant=st.sampled_from(["a", "b"]),
    pool=st.sampled_from(Pool),
    models=st.sampled_from([(), (), ("V100",), ("T4", "V100")]),
    memory_mb=st.sampled_from([0, 8_192, 16_384]),
    cpus=st.sampled_from([0, 0, 1, 3]),
    ram_mb=st.sampled_from([0, 512]),
    timeout_ms=st.sampled_from([None, 1_000, 1_000, 20_000, 20_000, 20_000, 20_001]),
    max_retries=st.sampled_from([0, 1, 3]),
    restart=st.sampled_from([Restart.NEVER, Restart.NEVER, Restart.ON_FAILURE, Restart.ALWAYS]),
    allocation=st.sampled_from([False, False, False, True]),
)


@st.composite
def card_lists(draw: st.DrawFn, on: str) -> tuple[Gpu, ...]:
    """A node's own cards: mostly all and well, sometimes fewer, flawed, or one that other nodes have had too."""
    names = [f"GPU-{on}-0", f"GPU-{on}-1", f"GPU-{on}-2"]
    if draw(st.integers(0, 3)) == 0:
        names = draw(st.lists(st.sampled_from([*names, "wanderer"]), unique=True, max_size=4))
    flaw = draw(st.sampled_from(["", "", "", "reserved", "fault"]))
    return tuple(
        gpu(
            name,
            on=on,
            index=index,
            model="T4" if on == "n3" else "V100",
            memory_mb=8_192 if name.endswith("-2") else 16_384,
            reserved=flaw == "reserved" and index == 0,
            fault="ecc" if flaw == "fault" and index == 0 else "",
        )
        for index, name in enumerate(names)
    )


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.events: list[Event] = []
        self.at = START
        self.rules = RULES
        self.twins = Twins()

    def send(self, command: Command) -> tuple[Event, ...] | Rejection:
        before = digest(self.state)
        last_at = self.state.last_at
        decision = self.twins.execute(self.state, command)
        if isinstance(decision, Rejection) or not decision:
            assert digest(self.state) == before, "what was refused, or was no news, changed something"
        else:
            self.events += decision
        assert self.state.last_at >= last_at
        return decision

    @initialize(nodes=st.integers(0, 3))
    def begin(self, nodes: int) -> None:
        self.send(BeginEpoch(at=self.at, settings=self.rules))
        for name in NODES[:nodes]:
            self.send(replace(node(name, gpus=gpus_of(name, 3), cpus=4, ram_mb=2_048), at=self.at))

    @rule(ms=st.sampled_from([1, 50, 100, 1_000, 5_000]))
    def time_passes(self, ms: int) -> None:
        self.at += ms

    # people

    @rule(entry=st.tuples(st.integers(1, 4), specs))
    def submit_and_place(self, entry: Any) -> None:
        self.send(SubmitTasks(at=self.at, entries=(entry,)))
        self.pass_runs(1_000, full=False)

    @rule(
        entries=st.lists(st.tuples(st.integers(1, 3), specs), min_size=1, max_size=3),
        key=st.sampled_from(["", "k1", "k2", "k3"]),
    )
    def submit(self, entries: list[Any], key: str) -> None:
        self.send(
            SubmitTasks(
                at=self.at, entries=tuple(entries), idempotency_key=key, fingerprint=str(entries[0][0])
            )
        )

    @rule(data=st.data(), unknown=st.integers(0, 9))
    def cancel_some(self, data: st.DataObject, unknown: int) -> None:
        known = sorted(self.state.tasks)
        task_ids = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        self.send(CancelTasks(at=self.at, task_ids=(*task_ids, 999) if unknown == 0 else tuple(task_ids)))

    @rule(
        status=st.sampled_from([None, TaskStatus.PENDING, TaskStatus.RUNNING]),
        tenant=st.sampled_from(["a", "b"]),
        priority=st.sampled_from([10, 50, 90]),
        everything=st.integers(0, 9),
    )
    def cancel_filtered(self, status: TaskStatus | None, tenant: Any, priority: int, everything: int) -> None:
        if everything == 0:
            self.send(CancelTasks(at=self.at))
        else:
            self.send(CancelTasks(at=self.at, status=status, tenant_id=tenant, priority=priority))

    @rule(user=st.sampled_from(["", "ann"]), alone=st.booleans())
    def audit(self, user: str, alone: bool) -> None:
        at, entry, before = self.at, AuditEntry(user=user), len(self.events)
        nothing = CancelTasks(at=at, priority=11, audit=entry)
        self.send(RecordAudit(at=at, entries=(entry,)) if alone else nothing)
        assert self.events[before:] == [Audited(at, entry)]

    # nodes

    @rule(
        data=st.data(),
        name=st.sampled_from(NODES),
        boot=st.sampled_from(["boot-1", "boot-1", "boot-2"]),
        cpus=st.sampled_from([2, 4]),
    )
    def register(self, data: st.DataObject, name: Any, boot: str, cpus: int) -> None:
        held = [
            HeldLease(lease_id=lease.id, task_id=lease.task_id, running=lease.started)
            for lease in self.state.node_leases(name)
        ]
        kept = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        gpus = data.draw(card_lists(name))
        self.send(
            replace(node(name, gpus=gpus, boot=boot, cpus=cpus, ram_mb=2_048, held=tuple(kept)), at=self.at)
        )

    @precondition(lambda self: self.state.nodes)
    @rule(data=st.data())
    def change_inventory(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.state.nodes)))
        self.send(ChangeInventory(at=self.at, node_id=name, gpus=data.draw(card_lists(name))))

    @precondition(lambda self: self.state.gpus)
    @rule(
        data=st.data(),
        foreign_mb=st.sampled_from([0, 0, 1, 4_096, 9_000]),
        fault=st.sampled_from(["", "", "", "xid"]),
    )
    def observe(self, data: st.DataObject, foreign_mb: int, fault: str) -> None:
        gpu_id = data.draw(st.sampled_from(sorted(self.state.gpus)))
        self.send(ObserveGpu(at=self.at, gpu_id=gpu_id, foreign_mb=foreign_mb, fault=fault))

    @precondition(lambda self: self.state.nodes)
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            [LoseNode, LoseNode, ReleaseNode, ReleaseNode, DrainNode, ResumeNode, RemoveNode]
        ),
    )
    def operate(self, data: st.DataObject, kind: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.state.nodes)))
        reason = {} if kind in {ResumeNode, RemoveNode} else {"reason": "silent"}
        self.send(kind(at=self.at, node_id=name, **reason))

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data(), after=st.sampled_from(["silence", "given up", "given up", "reboot", "reconnect"]))
    def a_busy_node_is_lost(self, data: st.DataObject, after: str) -> None:
        name = data.draw(st.sampled_from(sorted({lease.node_id for lease in self.state.leases.values()})))
        self.send(LoseNode(at=self.at, node_id=name, reason="silent"))
        if after == "given up":
            self.send(ReleaseNode(at=self.at, node_id=name, reason="lease over"))
            assert all(lease.ended for lease in self.state.node_leases(name))  # ranks wait for their gang
        elif after != "silence":
            self.register(data, name, "boot-3" if after == "reboot" else self.state.nodes[name].boot_id, 4)

    # agents

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data(), ago_ms=st.sampled_from([0, 30]))
    def report_started(self, data: st.DataObject, ago_ms: int) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        self.send(ReportStarted(at=self.at, lease_id=lease_id, ago_ms=ago_ms))

    @precondition(lambda self: self.state.leases)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        exit_code=st.sampled_from([0, 1]),
        stuck=st.integers(0, 4),
        then_place=st.booleans(),
    )
    def report_finished(
        self, data: st.DataObject, outcome: Outcome, exit_code: int, stuck: int, then_place: bool
    ) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        stuck_gpus = self.state.leases[lease_id].gpu_ids[:1] if stuck == 0 else ()
        report = finished(lease_id, exit_code, outcome=outcome, signal=9, at=self.at, stuck_gpus=stuck_gpus)
        self.send(report)
        assert self.send(report) == StaleLease(lease_id=lease_id)
        if then_place:
            self.pass_runs(1_000, full=False)

    # the scheduler

    @rule(limit=st.sampled_from([0, 1, 2, 1_000, 1_000]), full=st.booleans())
    def pass_runs(self, limit: int, full: bool) -> None:
        planned = _plan(self.state, self.at, limit)
        decision = self.send(RunPass(at=self.at, limit=limit, full=full))
        assert isinstance(decision, tuple)
        placed = [event for event in decision if isinstance(event, TaskPlaced | GangPlaced)]
        assert placed == planned, "the indexes choose otherwise than a plain search does"
        for event in placed:
            ranks = event.ranks if isinstance(event, GangPlaced) else (event,)
            assert not any(self.state.nodes[rank.node_id].unconfirmed_since for rank in ranks)

    @rule(behind_ms=st.sampled_from([0, 0, 500, 100_000]), takes_over=st.integers(0, 4))
    def tick(self, behind_ms: int, takes_over: int) -> None:
        self.send(Tick(at=self.at, history_at=self.at - behind_ms))
        if takes_over <= 1:
            self.send(BeginEpoch(at=self.at, settings=self.rules))
            for command in returning(self.state) if takes_over == 1 else ():
                self.send(replace(command, at=self.at))

    # what holds after each step

    @invariant()
    def the_state_is_sound(self) -> None:
        check_invariants(self.state)

    @invariant()
    def a_replay_is_equal(self) -> None:
        again = replay(self.events)
        assert digest(again) == digest(self.state)
        check_invariants(again)

    @invariant()
    def a_fork_goes_its_own_way(self) -> None:
        before = digest(self.state)
        fork = self.state.fork()
        execute(fork, task())
        execute(fork, RunPass(at=self.at + 1_000))
        execute(fork, CancelTasks(at=self.at + 1_000))
        check_invariants(fork)
        assert digest(self.state) == before

    @invariant()
    def the_queue_is_in_order(self) -> None:
        waiting = queue(self.state, limit=1_000)
        assert waiting == sorted(waiting, key=lambda each: _turn(self.state, each))
        assert len(waiting) == self.state.waiting_count
        assert [position(self.state, each) for each in waiting] == list(range(1, len(waiting) + 1))

    @invariant()
    def every_wait_has_a_reason_that_holds(self) -> None:
        """A task is the next to be placed if and only if nothing but those ahead is in its way."""
        first = _plan(self.state, self.at, 1)
        for task_id in queue(self.state, limit=1_000):
            told = explain(self.state, task_id, self.at)
            assert isinstance(told, Explanation)
            in_the_way = {blocker.code for blocker in told.blockers} - {"tasks_ahead"}
            oracle = Oracle(self.state, self.at)
            waiting = self.state.tasks[task_id]
            fits = (
                _place(self.state, task_id) is not None
                and oracle.is_ready(waiting)
                and oracle.admits(waiting)
            )
            assert fits == (not in_the_way), (task_id, told)
            if not told.blockers and not self.state.dependents.broken:
                assert [placed.task_id for placed in first] == [task_id]

    @invariant()
    def a_back_off_has_its_wake_up(self) -> None:
        tasks = [each for each in self.state.tasks.values() if not self.state.is_apart(each)]
        later = [each.eligible_at for each in tasks if each.eligible_at > self.at]
        wake_at = next_wake_at(self.state)
        assert not later or (wake_at is not None and wake_at <= min(later))


def _turn(state: ClusterState, task_id: int) -> tuple[int, int, int]:
    shape = state.shapes[state.tasks[task_id].shape_id]
    point_ms = state.settings.ageing_ms
    aged = state.tasks[task_id].created_at // point_ms if point_ms else 0
    return (aged - shape.priority, state.accounts.by_tenant[shape.tenant_id].share, task_id)


def _place(state: ClusterState, task_id: int) -> list[str] | None:
    """The nodes a task goes to, found by looking at every one, without the product's own ranking."""
    shape = state.shapes[state.tasks[task_id].shape_id]
    liked = Liking(state, shape, parole=demand_of(shape).parole).in_order()
    return liked[: shape.nodes] if len(liked) >= shape.nodes else None


def _plan(state: ClusterState, at: int, limit: int) -> list[TaskPlaced | GangPlaced]:
    """What a pass must do, by the plainest of means: of all that fit, the first in order, again and again."""
    fork = without_broken(state, at)
    planned: list[TaskPlaced | GangPlaced] = []
    while len(planned) < limit:
        oracle = Oracle(fork, at)
        admitted = [each.id for each in oracle.ready() if oracle.admits(each)]
        fitting = [each for each in admitted if _place(fork, each) is not None]
        if not fitting:
            break
        first = min(fitting, key=lambda each: _turn(fork, each))
        events = decide(fork, RunPass(at=at, limit=1))
        assert isinstance(events, tuple)
        (placed,) = (event for event in events if isinstance(event, TaskPlaced | GangPlaced))
        ranks = placed.ranks if isinstance(placed, GangPlaced) else (placed,)
        assert (placed.task_id, [rank.node_id for rank in ranks]) == (first, _place(fork, first))
        for each in ranks:
            _fits_there(fork, each)
        replay(events, fork)
        planned.append(placed)
    return planned


def _fits_there(state: ClusterState, placed: TaskPlaced) -> None:
    """Nothing is given away twice, or to whom it does not suit."""
    wanted = state.shapes[state.tasks[placed.task_id].shape_id]
    there = state.nodes[placed.node_id]
    assert there.status is NodeStatus.READY
    leases = state.node_leases(placed.node_id)
    assert (
        not wanted.cpus_milli
        or sum(each.cpus_milli for each in leases) + wanted.cpus_milli <= there.cpus_milli
    )
    assert not wanted.ram_mb or sum(each.ram_mb for each in leases) + wanted.ram_mb <= there.ram_mb
    assert len(placed.gpu_ids) == len(set(placed.gpu_ids)) == wanted.gpus
    taken = {gpu_id for each in state.leases.values() for gpu_id in each.gpu_ids}
    for gpu_id in placed.gpu_ids:
        card = state.gpus[gpu_id]
        assert gpu_id not in taken
        assert card.node_id == placed.node_id
        assert not (card.reserved or card.fault or card.gone)
        assert not wanted.gpu_models or card.model in wanted.gpu_models
        assert not wanted.gpu_memory_mb or card.memory_mb - card.foreign_mb >= wanted.gpu_memory_mb


TestCluster, TestClusterAtRandom = fixed_and_random(Cluster, examples=100, steps=40)


def test_shapes_of_equal_wishes_are_one() -> None:
    assert shape(1, cpus=2) == shape(1, cpus=2)
    assert hash(shape(1, cpus=2)) == hash(shape(1, cpus=2))
