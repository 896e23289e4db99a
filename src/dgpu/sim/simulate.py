"""One seed, one world: a workload, faults, then rest and the final checks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from dgpu.core.model.settings import Settings
from dgpu.service.machine.contact import AgentRules, LeaseAction
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.task_output.intake import OutputIntake
from dgpu.sim.call_load import CallLoad
from dgpu.sim.checkers import Checkers, Violation
from dgpu.sim.faults import Faults
from dgpu.sim.network import Network
from dgpu.sim.node_host import NodeHost
from dgpu.sim.output_scheduler import MakeIntake
from dgpu.sim.scheduler_host import MakeScheduler, SchedulerHost
from dgpu.sim.workload import Workload
from dgpu.sim.world import World

TROUBLE_MS = 240_000
PEACE_MS = 3_600_000
NODES = 3
SUBMITS = 25
FAULTS = 18
CALL_SUBMITS = 30


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    tasks: int
    forgotten: int
    timeouts: int
    reads_of_ends: int
    outputs: int
    output_gaps: int
    runs: int
    calls: int  # that workers got
    freezes: int
    scheduler_starts: int
    torn_tails: int
    faults: dict[str, int]
    ended_at_ms: int
    journal_bytes: int


Loss = Literal["", "state", "tail"]


def simulate(
    seed: int,
    *,
    make_scheduler: MakeScheduler = Scheduler,
    make_intake: MakeIntake = OutputIntake,
    only_fault: str = "",
    loses: Loss = "",
    has_calls: bool = False,
) -> Summary:
    """Raises Violation (or an assertion of the core) if a promise is broken.

    `loses`: once, the scheduler's whole state or the end of its journal is lost, and an operator accepts that.
    `has_calls`: clients also call functions, which run in workers.
    """
    world = World(seed)
    checkers = Checkers(seed)
    network = Network(world)
    actions: tuple[LeaseAction, ...] = ("freeze", "freeze", "stop")
    rules = AgentRules(lease_action=world.chance.choice(actions))
    scheduler = SchedulerHost(
        world, checkers, rules, _settings(world, has_calls), make_scheduler, make_intake
    )
    nodes = _nodes(world, network, scheduler, checkers, has_calls=has_calls)
    workload = Workload(world, scheduler, checkers)
    faults = Faults(world, network, scheduler, nodes)
    scheduler.start()
    for node in nodes:
        world.after(world.between(0, 3_000), node.start_agent)
    workload.plan(SUBMITS, TROUBLE_MS)
    if has_calls:
        CallLoad(world, workload).plan(CALL_SUBMITS, TROUBLE_MS)
    faults.plan(FAULTS, TROUBLE_MS, only_fault, has_calls=has_calls)
    if loses:
        lose = faults.lose_state if loses == "state" else faults.lose_tail
        lost_ms = world.between(20_000, TROUBLE_MS)
        world.after(lost_ms, lose)
        world.after(lost_ms + 1, workload.release_again)

    world.run_until(TROUBLE_MS)
    faults.heal()
    world.run_until(TROUBLE_MS + PEACE_MS, lambda: _is_at_rest(scheduler, workload, nodes))
    _check_at_rest(seed, checkers, scheduler, workload, nodes)
    return _summary(world, checkers, scheduler, faults)


def _nodes(
    world: World, network: Network, scheduler: SchedulerHost, checkers: Checkers, *, has_calls: bool
) -> list[NodeHost]:
    """The first is large enough for any task."""
    schedulers, output = {"scheduler": scheduler}, scheduler.output
    return [
        NodeHost(world, network, schedulers, output, checkers, f"n{number}", gpus, has_calls=has_calls)
        for number in range(NODES)
        for gpus in (world.between(1, 3) if number else 2,)
    ]


def _check_at_rest(
    seed: int, checkers: Checkers, scheduler: SchedulerHost, workload: Workload, nodes: list[NodeHost]
) -> None:
    if not scheduler.is_up or not workload.is_answered:
        raise Violation(f"seed {seed}: the scheduler did not return or does not answer")
    checkers.check_at_rest(scheduler.state, scheduler.disk.replayed(), scheduler.history)
    if not all(node.output.is_at_rest for node in nodes):
        raise Violation(f"seed {seed}: output was never stored")
    checkers.outputs.check(scheduler.output.stored, [key for node in nodes for key in node.output.files])


def _summary(world: World, checkers: Checkers, scheduler: SchedulerHost, faults: Faults) -> Summary:
    return Summary(
        seed=world.seed,
        tasks=sum(len(ids) for ids in checkers.acknowledged.values()),
        forgotten=len(scheduler.history.ended.keys() - scheduler.state.tasks.keys()),
        timeouts=checkers.timeouts,
        reads_of_ends=checkers.reads_of_ends,
        outputs=checkers.outputs.checked,
        output_gaps=checkers.outputs.gaps,
        runs=checkers.runs,
        calls=checkers.calls,
        freezes=checkers.freezes,
        scheduler_starts=scheduler.starts,
        torn_tails=scheduler.disk.torn,
        faults=faults.happened,
        ended_at_ms=world.now,
        journal_bytes=len(scheduler.disk.memory.segment),
    )


def _settings(world: World, has_calls: bool) -> Settings:
    """In half of the worlds, finished tasks leave the memory soon, and readers find them in the history."""
    settings = Settings(default_timeout_ms=0, max_timeout_ms=0)
    if world.chance.random() >= 0.5:
        settings = replace(settings, keep_finished=3, keep_finished_ms=5_000)
    if has_calls:
        settings = replace(settings, worker_idle_ms=20_000, worker_turn_ms=15_000, max_models_per_gpu=1)
    return settings


def _is_at_rest(scheduler: SchedulerHost, workload: Workload, nodes: list[NodeHost]) -> bool:
    machine = scheduler.scheduler
    return (
        machine is not None
        and workload.is_answered
        and machine.ready
        and not machine.in_flight
        and not machine.queued
        and machine.state.ended_count == len(machine.state.tasks)
        and all(node.output.is_at_rest for node in nodes)
    )
