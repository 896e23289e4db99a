"""States for tests, built in a line: `cluster(node("n1", gpus=2), task(gpus=1), lease(task=1, on="n1"))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.commands import (
    BeginEpoch,
    Command,
    HeldLease,
    RegisterNode,
    ReportFinished,
    RunPass,
    SubmitTasks,
)
from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.model.array import ArrayPlan, parse_array, size
from dgpu.core.model.dependencies import Dependency, When
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Constraint, Outcome, Pool, Restart, Shape, TaskDetail, TaskSpec
from dgpu.core.rejections import Rejection
from dgpu.core.rules.fit import chosen_cards
from dgpu.core.state import ClusterState

Step: TypeAlias = Command | Callable[[ClusterState], None]

START = 1_000_000  # ms; small, so that differences are easy to read


def cluster(*steps: Step, settings: Settings | None = None) -> ClusterState:
    """A state in which all of these happened, a millisecond apart. Without settings no memory is held back, so that
    numbers are easy to read.
    """
    state = ClusterState()
    do(state, BeginEpoch(at=START, settings=settings or Settings(memory_margin_mb=0)))
    for step in steps:
        if isinstance(step, Command):
            do(state, step)
        else:
            step(state)
    return state


def do(state: ClusterState, command: Command, at: int | None = None) -> tuple[Event, ...]:
    """Execute what must not be refused. Without a time, a millisecond after the last event."""
    decision = tried(state, command, at)
    assert not isinstance(decision, Rejection), decision
    return decision


def tried(state: ClusterState, command: Command, at: int | None = None) -> tuple[Event, ...] | Rejection:
    if at is None:
        at = command.at or state.last_at + 1
    return execute(state, msgspec.structs.replace(command, at=at))


def gpu(
    name: str, *, on: str = "n1", index: int = 0, model: str = "V100", memory_mb: int = 16_384, **more
) -> Gpu:
    return Gpu(id=GpuId(name), node_id=NodeId(on), index=index, model=model, memory_mb=memory_mb, **more)


def gpus_of(name: str, count: int, *, model: str = "V100", memory_mb: int = 16_384) -> tuple[Gpu, ...]:
    return tuple(
        gpu(f"GPU-{name}-{index}", on=name, index=index, model=model, memory_mb=memory_mb)
        for index in range(count)
    )


def node(
    name: str = "n1",
    gpus: int | tuple[Gpu, ...] = 1,
    *,
    model: str = "V100",
    memory_mb: int = 16_384,
    cpus: int = 64,
    ram_mb: int = 262_144,
    boot: str = "boot-1",
    held: tuple[int | HeldLease, ...] = (),
    labels: dict[str, str] | None = None,
) -> RegisterNode:
    listed = gpus_of(name, gpus, model=model, memory_mb=memory_mb) if isinstance(gpus, int) else gpus
    return RegisterNode(
        node_id=NodeId(name),
        boot_id=boot,
        cpus_milli=cpus * 1_000,
        ram_mb=ram_mb,
        gpus=listed,
        labels=labels or {},
        held=tuple(
            HeldLease(lease_id=LeaseId(each), task_id=TaskId(each), running=True)
            if isinstance(each, int)
            else each
            for each in held  # a number: of the task with the same number
        ),
    )


def returning(state: ClusterState) -> list[RegisterNode]:
    """How each unconfirmed node registers again after a restart of the scheduler: with all that it had and holds."""
    return [
        RegisterNode(
            node_id=each.id,
            boot_id=each.boot_id,
            address=each.address,
            agent_version=each.agent_version,
            cpus_milli=each.cpus_milli,
            ram_mb=each.ram_mb,
            labels=each.labels,
            gpus=tuple(gpu for gpu in state.node_gpus(each.id) if not gpu.gone),
            held=tuple(
                HeldLease(
                    lease_id=lease.id,
                    task_id=lease.task_id,
                    running=lease.started,
                    worker_lease_id=lease.worker,
                )
                for lease in (*state.node_leases(each.id), *state.node_calls(each.id))
            ),
        )
        for each in state.nodes.values()
        if each.unconfirmed_since
    ]


def restart(state: ClusterState, settings: Settings | None = None, at: int | None = None) -> None:
    """A new scheduler begins, and all nodes register again."""
    do(state, BeginEpoch(settings=settings or state.settings), at)
    for command in returning(state):
        do(state, command, at)


def shape(
    gpus: int = 1,
    *,
    priority: int = 50,
    tenant: str = "default",
    pool: Pool = Pool.BATCH,
    models: tuple[str, ...] = (),
    memory_mb: int = 0,
    cpus: int = 0,
    ram_mb: int = 0,
    nodes: int = 1,
    share: float = 1,
    constraints: tuple[Constraint, ...] = (),
    model: str = "",
) -> Shape:
    return Shape(
        tenant_id=TenantId(tenant),
        pool=pool,
        priority=priority,
        gpus=gpus,
        gpu_models=models,
        gpu_memory_mb=memory_mb,
        cpus_milli=cpus * 1_000,
        ram_mb=ram_mb,
        nodes=nodes,
        share_milli=round(share * 1_000),
        constraints=constraints,
        model=model,
    )


def spec(
    gpus: int = 1,
    *,
    timeout_ms: int | None = None,
    max_retries: int = 3,
    restart: Restart = Restart.NEVER,
    allocation: bool = False,
    command: str = "true",
    held: bool = False,
    after: tuple[Dependency, ...] = (),
    array: str = "",
    begins_ms: int = 0,
    model: str = "",
    task_type: str = "",
    atoms: int = 0,
    **more,
) -> TaskSpec:
    plan = parse_array(array) if array else ArrayPlan((), 0)
    return TaskSpec(
        shape=shape(gpus, model=model, **more),
        detail=msgspec.json.encode(
            TaskDetail(command=command, model_name=model, task_type=task_type, structure_n_atoms=atoms)
        ),
        timeout_ms=timeout_ms,
        max_retries=max_retries,
        restart=restart,
        allocation=allocation,
        held=held,
        after=after,
        array=plan.ranges,
        array_limit=plan.limit,
        begins_ms=begins_ms,
    )


def on(task_id: int, when: str = "ok") -> Dependency:
    return Dependency(task_id=TaskId(task_id), when=When(when))


def task(gpus: int = 1, *, count: int = 1, key: str = "", fingerprint: str = "", **more) -> SubmitTasks:
    asked = spec(gpus, **more)
    count = size(asked.array) if asked.array else count
    return SubmitTasks(entries=((count, asked),), idempotency_key=key, fingerprint=fingerprint)


def lease(task: int, on: str) -> Callable[[ClusterState], None]:
    """Places a waiting task on this very node, whatever the order would say."""

    def place(state: ClusterState) -> None:
        room = state.rooms.by_node[NodeId(on)]
        waiting = state.tasks[TaskId(task)]
        cards = chosen_cards(room, state.queue.shapes[waiting.shape_id].demand)
        apply(
            state,
            TaskPlaced(
                at=state.last_at + 1,
                task_id=waiting.id,
                lease_id=state.next_lease_id,
                attempt=waiting.attempt + 1,
                node_id=room.node_id,
                gpu_ids=tuple(card[2] for card in cards),
            ),
        )

    return place


def run_pass(state: ClusterState, at: int | None = None, **more) -> list[int]:
    """The tasks that a pass places, in order."""
    placed = TaskPlaced | GangPlaced
    return [event.task_id for event in do(state, RunPass(**more), at) if isinstance(event, placed)]


def finished(lease_id: int, exit_code: int = 0, **more) -> ReportFinished:
    return ReportFinished(
        lease_id=LeaseId(lease_id), outcome=more.pop("outcome", Outcome.EXITED), exit_code=exit_code, **more
    )
