"""Pools and tenants under any sequence of commands: no grant passes a bound, and every wait is for a rule that fails."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from building import START, finished, gpus_of, node, spec
from building.examples import fixed_and_random
from building.lockstep import Twins
from building.oracle import Oracle
from dgpu.core.apply.table import apply
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    Command,
    CreateToken,
    DeleteSecret,
    LoseNode,
    ObserveGpu,
    ReleaseNode,
    RemoveTenant,
    Reseal,
    RevokeToken,
    RunPass,
    SetQuota,
    SetSecret,
    SetTenant,
    SubmitTasks,
    Tick,
)
from dgpu.core.digest import digest
from dgpu.core.events import Event, GangPlaced, TaskPlaced, TaskStopRequested
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import LeaseId, TaskId, TenantId, TokenId
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret, secret_id
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, Task, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.rejections import Rejection
from dgpu.core.replay import replay
from dgpu.core.rules.order import position, queue
from dgpu.core.rules.place import beside_reservations, claim_of_spots
from dgpu.core.state import ClusterState

NODES = ("n1", "n2")
RULES = Settings(
    fair_share_half_life_ms=120_000,
    keep_finished=4,
    memory_margin_mb=0,
)
OURS = {
    "pool_quota",
    "tenant_gpus",
    "tenant_running",
    "tenant_memory",
    "tenant_budget",
    "guaranteed_to_others",
}

specs = st.builds(
    spec,
    st.sampled_from([0, 1, 1, 1, 2, 3]),
    priority=st.sampled_from([50, 50, 50, 90]),
    tenant=st.sampled_from(["a", "a", "b", "c"]),
    pool=st.sampled_from(Pool),
    memory_mb=st.sampled_from([0, 4_096, 8_192]),
    max_retries=st.just(0),
    allocation=st.sampled_from([False, False, False, True]),
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_gpus": st.integers(1, 4),
        "guaranteed_gpus": st.sampled_from([1, 2]),
        "weight_milli": st.sampled_from([500, 2_000]),
        "max_running": st.integers(1, 3),
        "max_gpu_memory_mb": st.sampled_from([8_192, 16_384]),
        "gpu_hours_milli": st.sampled_from([1, 50, 1_000]),
    },
)


class Admission(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.events: list[Event] = []
        self.at = START
        self.twins = Twins()

    def send(self, command: Command) -> tuple[Event, ...] | Rejection:
        before = digest(self.state)
        decision = self.twins.execute(self.state, command)
        if isinstance(decision, Rejection) or not decision:
            assert digest(self.state) == before, "what was refused, or was no news, changed something"
        else:
            self.events += decision
        return decision

    @initialize(
        tenants=st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys("abc", limits))),
        quota=st.builds(
            Quota,
            online_ppm=st.sampled_from([300_000, 600_000]),
            mode=st.sampled_from(QuotaMode),
            reclaim=st.sampled_from(Reclaim),
        ),
    )
    def begin(self, tenants: dict[str, Any], quota: Quota) -> None:
        known = tuple(Tenant(id=TenantId(name), **given) for name, given in tenants.items())
        self.send(BeginEpoch(at=self.at, settings=replace(RULES, tenants=known, quota=quota)))
        for name in NODES:
            self.send(replace(node(name, gpus=gpus_of(name, 3)), at=self.at))

    # people

    @rule(
        entries=st.lists(st.tuples(st.integers(1, 4), specs), min_size=2, max_size=4),
        data=st.data(),
        ms=st.sampled_from([1, 1_000, 90_000]),
    )
    def a_busy_while(self, entries: list[Any], data: st.DataObject, ms: int) -> None:
        """Work comes, some of what runs ends, and what is free is given away again."""
        for entry in entries:
            self.send(SubmitTasks(at=self.at, entries=(entry,)))
        self.run_a_pass(full=False)
        self.time_passes(ms)
        if self.state.leases:
            leases = data.draw(st.lists(st.sampled_from(sorted(self.state.leases)), min_size=1, unique=True))
            for lease_id in leases:
                self.send(finished(lease_id, at=self.at))
            self.run_a_pass(full=False)

    @rule(entries=st.lists(st.tuples(st.integers(1, 4), specs), min_size=1, max_size=2), place=st.booleans())
    def submit(self, entries: list[Any], place: bool) -> None:
        self.send(SubmitTasks(at=self.at, entries=tuple(entries)))
        if place:
            self.run_a_pass(full=False)

    @rule(entry=specs, share=st.sampled_from([250, 500, 600]))
    def submit_a_share(self, entry: Any, share: int) -> None:
        shape = replace(entry.shape, gpus=1, share_milli=share)
        self.send(SubmitTasks(at=self.at, entries=((2, replace(entry, shape=shape)),)))

    @rule(entry=specs)
    def submit_a_gang(self, entry: Any) -> None:
        self.send(
            SubmitTasks(at=self.at, entries=((1, replace(entry, shape=replace(entry.shape, nodes=2))),))
        )

    @rule(name=st.sampled_from(["a", "b", "c"]), given=limits)
    def set_tenant(self, name: str, given: dict[str, Any]) -> None:
        self.send(SetTenant(at=self.at, tenant=Tenant(id=TenantId(name), **given)))

    @precondition(lambda self: self.state.tenants)
    @rule(name=st.sampled_from(["a", "b", "c"]))
    def remove_tenant(self, name: str) -> None:
        self.send(RemoveTenant(at=self.at, tenant_id=TenantId(name)))

    @rule(name=st.sampled_from(["k1", "k2", "k3"]), tenant=st.sampled_from(["a", "b"]), creates=st.booleans())
    def create_or_revoke_a_token(self, name: str, tenant: str, creates: bool) -> None:
        """No task is placed otherwise for a token."""
        token_id = TokenId(name)
        if not creates:
            self.send(RevokeToken(at=self.at, token_id=token_id))
            return
        tenants = (TenantId(tenant),)
        token = Token(id=token_id, name="", user="u", role="user", keyed_hash=bytes(32), tenants=tenants)
        self.send(CreateToken(at=self.at, token=token))

    @rule(name=st.sampled_from(["K1", "K2"]), tenant=st.sampled_from(["a", "b"]), sets=st.booleans())
    def set_or_delete_a_secret(self, name: str, tenant: str, sets: bool) -> None:
        """No task is placed otherwise for a secret."""
        tenant_id = TenantId(tenant)
        if sets:
            secret = Secret(tenant_id=tenant_id, name=name, sealed=b"sealed")
            self.send(SetSecret(at=self.at, secret=secret))
        else:
            self.send(DeleteSecret(at=self.at, tenant_id=tenant_id, name=name))

    @rule(version=st.integers(1, 2))
    def reseal(self, version: int) -> None:
        details = tuple(
            ResealedDetail((task.id, TaskId(task.id + 1_000)), task.detail + b" ")
            for task in list(self.state.tasks.values())[:3]
        )
        secrets = (ResealedSecret(secret_id(TenantId("a"), "K1"), version, b"resealed"),)
        self.send(Reseal(at=self.at, secrets=secrets, details=details))

    @rule(
        online_ppm=st.sampled_from([None, 0, 300_000, 500_000, 1_000_000]),
        mode=st.sampled_from([None, *QuotaMode, QuotaMode.BORROW]),
        reclaim=st.sampled_from([None, *Reclaim, Reclaim.STOP]),
    )
    def set_quota(self, online_ppm: int | None, mode: QuotaMode | None, reclaim: Reclaim | None) -> None:
        self.send(SetQuota(at=self.at, online_ppm=online_ppm, mode=mode, reclaim=reclaim))

    @precondition(lambda self: self.state.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.send(CancelTasks(at=self.at, task_ids=(data.draw(st.sampled_from(sorted(self.state.tasks))),)))

    # nodes and time

    @rule(ms=st.sampled_from([1, 1_000, 60_000, 200_000]))
    def time_passes(self, ms: int) -> None:
        self.at += ms
        self.send(Tick(at=self.at, history_at=self.at))

    @rule(name=st.sampled_from(NODES), after=st.sampled_from(["silence", "given up", "back"]))
    def lose(self, name: Any, after: str) -> None:
        if self.state.nodes[name].offline_since:
            after = "back"
        self.send(LoseNode(at=self.at, node_id=name, reason="silent"))
        if after == "given up":
            self.send(ReleaseNode(at=self.at, node_id=name, reason="over"))
        elif after == "back":
            held = tuple(lease.id for lease in self.state.node_leases(name))
            self.send(replace(node(name, gpus=gpus_of(name, 3), held=held), at=self.at))

    @rule(name=st.sampled_from(["GPU-n1-0", "GPU-n2-1"]), fault=st.sampled_from(["", "xid"]))
    def observe(self, name: Any, fault: str) -> None:
        self.send(ObserveGpu(at=self.at, gpu_id=name, foreign_mb=0, fault=fault))

    @precondition(lambda self: self.state.leases)
    @rule(
        data=st.data(), outcome=st.sampled_from([Outcome.EXITED, Outcome.STOPPED]), then_place=st.booleans()
    )
    def finish(self, data: st.DataObject, outcome: Outcome, then_place: bool) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        self.send(finished(lease_id, outcome=outcome, at=self.at))
        if then_place:
            self.run_a_pass(full=False)

    # the scheduler

    @rule(full=st.booleans())
    def run_a_pass(self, full: bool) -> None:
        before = self.state.fork()
        decision = self.send(RunPass(at=self.at, full=full))
        assert isinstance(decision, tuple)
        for event in decision:
            if isinstance(event, TaskPlaced | GangPlaced):
                _is_right(before, event, self.at)
            apply(before, event)
        assert not _next(before, self.at), "somebody could have started"
        stops = [event for event in decision if isinstance(event, TaskStopRequested)]
        if stops:
            _stops_are_needed(before, stops, self.at)
        assert not [
            event
            for event in execute(self.state.fork(), RunPass(at=self.at))
            if isinstance(event, TaskStopRequested)
        ], "asked again"

    # what holds after each step

    @invariant()
    def the_state_is_sound(self) -> None:
        check_invariants(self.state)

    @invariant()
    def a_replay_is_equal(self) -> None:
        assert digest(replay(self.events)) == digest(self.state)

    @invariant()
    def the_queue_is_in_order(self) -> None:
        waiting = queue(self.state, limit=1_000)
        assert waiting == sorted(waiting, key=lambda each: _turn(self.state, each))
        assert [position(self.state, each) for each in waiting] == list(range(1, len(waiting) + 1))

    @invariant()
    def what_bars_a_task_is_what_fails(self) -> None:
        oracle = Oracle(self.state, self.at)
        for task_id in queue(self.state, limit=1_000):
            told = explain(self.state, task_id, self.at)
            assert isinstance(told, Explanation)
            task = self.state.tasks[task_id]
            barred = bool({blocker.code for blocker in told.blockers} & OURS)
            assert barred != oracle.admits(task, *_claim(self.state, task)), told


def _claim(state: ClusterState, task: Task) -> tuple[int | None, int | None]:
    """What it would take now, where that depends on the card."""
    spots = beside_reservations(state, state.queue.shapes[task.shape_id].demand)
    if not spots or state.shapes[task.shape_id].share_milli == 1_000:
        return None, None
    claim = claim_of_spots(spots)
    return claim.milli, claim.memory_mb


def _next(state: ClusterState, at: int) -> int | None:
    """Who starts next, by the plainest of means: of all that may and fit, the first in order."""
    oracle = Oracle(state, at)
    fitting = [
        task.id
        for task in oracle.ready()
        if oracle.admits(task)
        and beside_reservations(state, state.queue.shapes[task.shape_id].demand)
        and oracle.admits(task, *_claim(state, task))
    ]
    return min(fitting, key=lambda each: _turn(state, each)) if fitting else None


def _is_right(state: ClusterState, event: TaskPlaced | GangPlaced, at: int) -> None:
    assert event.task_id == _next(state, at), "another was to be the next"
    ranks = event.ranks if isinstance(event, GangPlaced) else (event,)
    milli = sum(rank.share_milli * len(rank.gpu_ids) for rank in ranks)
    memory_mb = sum(rank.gpu_memory_mb * len(rank.gpu_ids) for rank in ranks)
    admitted = Oracle(state, at).admits(state.tasks[event.task_id], milli, memory_mb)
    assert admitted, "the grant passes a bound"


def _stops_are_needed(state: ClusterState, stops: list[TaskStopRequested], at: int) -> None:
    """Each stop is of a borrowed batch task, in favour of an online task that waits. Without any one of them, less of what
    waits online starts.
    """
    oracle = Oracle(state, at)
    assert state.quota.mode is QuotaMode.BORROW
    assert state.quota.reclaim is Reclaim.STOP
    leaving = sum(state.leases[lease_id].gpu_milli for lease_id in state.reclaims)
    assert oracle.used[Pool.BATCH] - leaving >= oracle.quota[Pool.BATCH], "what is batch's own was stopped"
    for stop in stops:
        assert oracle.shape(state.tasks[stop.task_id]).pool is Pool.BATCH
        waiting = state.tasks[stop.for_task]
        assert waiting.status is TaskStatus.PENDING
        assert oracle.shape(waiting).pool is Pool.ONLINE
    everything = set(state.reclaims)
    started = _started_online(state, everything, at)
    helped = {state.tasks.get(task_id) for task_id in state.reclaims.values()} - {None}
    waiting = [oracle.shape(task) for task in helped if task.status is TaskStatus.PENDING]
    if started < sum(map(Oracle.milli, waiting)):
        return  # who gets what is settled when it is free: another may be liked there, and then somebody lacks a place
    for stop in stops:
        assert _started_online(state, everything - {stop.lease_id}, at) < started


def _started_online(state: ClusterState, ending: set[LeaseId], at: int) -> int:
    """Thousandths of GPUs that online tasks get when these leases end."""
    fork = state.fork()
    for lease_id in sorted(ending):
        execute(fork, finished(lease_id, outcome=Outcome.STOPPED, at=at))
    decision = execute(fork, RunPass(at=at))
    assert isinstance(decision, tuple)
    placed = [event for event in decision if isinstance(event, TaskPlaced)]
    placed += [rank for event in decision if isinstance(event, GangPlaced) for rank in event.ranks]
    return sum(
        rank.share_milli * len(rank.gpu_ids)
        for rank in placed
        if state.shapes[state.tasks[rank.task_id].shape_id].pool is Pool.ONLINE
    )


def _turn(state: ClusterState, task_id: int) -> tuple[int, int, int]:
    shape = state.shapes[state.tasks[task_id].shape_id]
    return (-shape.priority, state.accounts.by_tenant[shape.tenant_id].share, task_id)


TestAdmission, TestAdmissionAtRandom = fixed_and_random(Admission, examples=60, steps=30)
