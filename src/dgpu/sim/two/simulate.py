"""One seed, one world with two schedulers and one engine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dgpu.agent.epoch import Joined
from dgpu.core.digest import digest
from dgpu.core.model.settings import Settings
from dgpu.journal.engine_state import EngineState
from dgpu.service.machine.contact import AgentRules, LeaseAction
from dgpu.service.machine.scheduler import Scheduler
from dgpu.sim.checkers import Checkers, Violation
from dgpu.sim.engine import SimEngine
from dgpu.sim.network import Network
from dgpu.sim.node_host import NodeHost
from dgpu.sim.output_scheduler import SimOutput
from dgpu.sim.scheduler_host import MakeScheduler
from dgpu.sim.two.candidacy import SimCandidacy
from dgpu.sim.two.cluster import Cluster
from dgpu.sim.two.faults import TwoFaults
from dgpu.sim.two.life import Life, MakeCandidacy, Rules
from dgpu.sim.two.member import MakeLife, MemberHost
from dgpu.sim.two.truth import Truth
from dgpu.sim.workload import Workload
from dgpu.sim.world import World

TROUBLE_MS = 240_000
PEACE_MS = 3_600_000
NODES = 3
SUBMITS = 25
FAULTS = 18
MakeTruth = Callable[[int, Checkers, SimOutput], Truth]


class TwoSummary(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    tasks: int
    runs: int
    freezes: int
    reads_of_ends: int
    lives: int
    epochs: int
    groups: int
    torn_tails: int
    snapshots: int  # stored in the engine
    fetched: int  # by schedulers below the floor
    full_disks: int
    applied_late: int
    lost_calls: int
    faults: dict[str, int]
    ended_at_ms: int


def simulate_two(
    seed: int,
    *,
    make_scheduler: MakeScheduler = Scheduler,
    make_candidacy: MakeCandidacy = SimCandidacy,
    make_truth: MakeTruth = Truth,
    make_life: MakeLife = Life,
    only_fault: str = "",
    faults: int = FAULTS,
    checks_clock: bool = True,
) -> TwoSummary:
    """Raises Violation (or an assertion of the core) if a promise is broken.

    `checks_clock` False: only broken promises count, not a broken rule of the clock, which is a second line of defence.
    """
    world = World(seed)
    checkers = Checkers(seed)
    network = Network(world)
    output = SimOutput(world)
    truth = make_truth(seed, checkers, output)
    engine = SimEngine(world)
    engine.state = truth
    actions: tuple[LeaseAction, ...] = ("freeze", "freeze", "stop")
    agents = AgentRules(lease_action=world.chance.choice(actions))
    rules = Rules(agents, _settings(world), make_scheduler, make_candidacy, checks_clock=checks_clock)
    members = [MemberHost(world, engine, truth, rules, name, make_life) for name in ("a", "b")]
    cluster = Cluster(world, truth, members)
    output.start(cluster.session_of)
    nodes = [
        _node(world, network, members, output, checkers, f"n{number}", world.between(1, 3) if number else 2)
        for number in range(NODES)  # the first is large enough for any task
    ]
    workload = Workload(world, cluster, checkers, gives_up=True)
    trouble = TwoFaults(world, network, engine, truth, cluster, nodes)
    for host in members:
        world.after(world.between(0, 2_000), host.start)
    for node in nodes:
        world.after(world.between(0, 3_000), node.start_agent)
    workload.plan(SUBMITS, TROUBLE_MS)
    trouble.plan(faults, TROUBLE_MS, only_fault)

    world.run_until(TROUBLE_MS)
    trouble.heal()
    is_over = world.run_until(TROUBLE_MS + PEACE_MS, lambda: _is_at_rest(cluster, truth, workload))
    _check_at_rest(world, cluster, truth, checkers, workload, is_over=is_over)
    return _summary(world, checkers, engine, truth, cluster, trouble)


def _node(
    world: World,
    network: Network,
    members: list[MemberHost],
    output: SimOutput,
    checkers: Checkers,
    name: str,
    gpus: int,
) -> NodeHost:
    node = NodeHost(world, network, {m.name: m for m in members}, output, checkers, name, gpus)
    highest = 0

    def obeyed(joined: Joined) -> None:
        nonlocal highest
        if joined.epoch < highest:
            raise Violation(
                f"seed {world.seed}: node {name} obeyed epoch {joined.epoch} after epoch {highest}"
            )
        highest = joined.epoch

    node.on_obeyed = obeyed
    return node


def _check_at_rest(
    world: World, cluster: Cluster, truth: Truth, checkers: Checkers, workload: Workload, *, is_over: bool
) -> None:
    master = cluster.master()
    if master is None or master.life is None or not workload.is_answered:
        raise Violation(f"seed {world.seed}: no scheduler leads or answers")
    checkers.check_at_rest(master.life.state, truth.replayed, truth.history)
    if not is_over:
        raise Violation(f"seed {world.seed}: the world does not come to rest")
    for member in cluster.members:
        if member.copy.chain != truth.head.chain:
            raise Violation(f"seed {world.seed}: the copy of {member.name} differs from the journal")
        if member.life is None or digest(member.life.state) != digest(truth.replayed):
            raise Violation(f"seed {world.seed}: the state of {member.name} differs from the journal")


def _is_at_rest(cluster: Cluster, truth: EngineState, workload: Workload) -> bool:
    if not workload.is_answered:
        return False
    for member in cluster.members:
        life = member.life
        if life is None or member.copy.last_index != truth.head.index or life.scheduler.in_flight:
            return False
        state = life.state
        if state.ended_count != len(state.tasks):
            return False
    master = cluster.master()
    return (
        master is not None and master.serves and master.life is not None and not master.life.scheduler.queued
    )


def _settings(world: World) -> Settings:
    if world.chance.random() < 0.5:
        return Settings(default_timeout_ms=0, max_timeout_ms=0)
    return Settings(default_timeout_ms=0, max_timeout_ms=0, keep_finished=3, keep_finished_ms=5_000)


def _summary(
    world: World,
    checkers: Checkers,
    engine: SimEngine,
    truth: Truth,
    cluster: Cluster,
    faults: TwoFaults,
) -> TwoSummary:
    return TwoSummary(
        seed=world.seed,
        tasks=sum(len(ids) for ids in checkers.acknowledged.values()),
        runs=checkers.runs,
        freezes=checkers.freezes,
        reads_of_ends=checkers.reads_of_ends,
        lives=sum(member.lives for member in cluster.members),
        epochs=engine.state.head.epoch,
        groups=engine.state.head.index,
        snapshots=truth.snapshots,
        fetched=sum(member.copy.fetched for member in cluster.members),
        full_disks=sum(member.copy.refused for member in cluster.members),
        torn_tails=sum(member.copy.torn for member in cluster.members),
        applied_late=engine.applied_late,
        lost_calls=engine.lost,
        faults=faults.happened,
        ended_at_ms=world.now,
    )
