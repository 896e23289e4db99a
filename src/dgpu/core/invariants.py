"""Invariants that hold after every event. A breach is a bug in the scheduler, so it is raised, not returned."""

from __future__ import annotations

from itertools import pairwise

from dgpu.core.index.limits import settle_pools
from dgpu.core.index.queue import Queue
from dgpu.core.invariants_of_workers import check_workers
from dgpu.core.model.health import Health
from dgpu.core.model.idempotency import KeyRing, created_at
from dgpu.core.model.ids import NO_LEASE, GpuId, TaskId, TenantId
from dgpu.core.model.secrets import MAX_SEALED_BYTES, MAX_SECRETS, secret_id
from dgpu.core.model.task import WHOLE_MILLI, Pool, Task, TaskStatus
from dgpu.core.model.tokens import HASH_BYTES, MAX_TOKENS
from dgpu.core.state import ClusterState


def check_invariants(state: ClusterState) -> None:
    _check_tasks(state)
    _check_leases(state)
    _check_gangs(state)
    check_workers(state)
    _check_waiting(state)
    _check_gpus(state)
    _check_reservations(state)
    _hold(state.bookings.ends.check(state), "the known end of a lease differs from its task")
    _check_numbers(state)
    _check_tokens(state)
    _check_secrets(state)
    _check_indexes(state)


def _check_tasks(state: ClusterState) -> None:
    for task_id, task in state.tasks.items():
        _hold(task.id == task_id, f"task {task_id} is stored under another id")
        _hold(task.shape_id in state.shapes, f"task {task_id} has no shape")
        running = task.status is TaskStatus.RUNNING
        _hold(
            running == (task.lease_id != NO_LEASE),
            f"task {task_id} is {task.status} with lease {task.lease_id}",
        )
        if running:
            _hold(task.lease_id in state.leases, f"task {task_id} runs without its lease")
        _hold(
            task.status.is_final or not task.ended_at,
            f"task {task_id} is {task.status}, ended {task.ended_at}",
        )
        _hold(running or not task.cancelling, f"task {task_id} is {task.status} and being cancelled")
    _hold({task.shape_id for task in state.tasks.values()} == set(state.shapes), "shapes without a task")


def _check_leases(state: ClusterState) -> None:
    holders: dict[GpuId, int] = {}
    for lease_id, lease in state.leases.items():
        task = state.tasks.get(lease.task_id)
        _hold(task is not None and lease_id in state.leases_of(task), f"lease {lease_id} has no running task")
        _hold(lease.node_id in state.nodes, f"lease {lease_id} is on no node")
        if task is not None and task.id not in state.gangs:
            _hold(_agree(state, task), f"lease {lease_id} differs from its task")
        for gpu_id in lease.gpu_ids:
            held = holders.get(gpu_id, 0) + lease.share_milli
            _hold(
                held <= WHOLE_MILLI, f"GPU {gpu_id} is leased twice: {held} of {WHOLE_MILLI} with {lease_id}"
            )
            holders[gpu_id] = held
            gpu = state.gpus.get(gpu_id)
            _hold(
                gpu is not None and gpu.node_id == lease.node_id,
                f"lease {lease_id} names a GPU of another node",
            )


def _agree(state: ClusterState, task: Task) -> bool:
    lease = state.leases[task.lease_id]
    shape = state.shapes[task.shape_id]
    return (
        (lease.node_id, lease.gpu_ids) == (task.node_id, task.gpu_ids)
        and bool(lease.worker) == bool(shape.app)
        and (len(lease.gpu_ids), lease.cpus_milli, lease.ram_mb)
        == (shape.gpus, shape.cpus_milli, shape.ram_mb)
        and (lease.started or not task.started_at)
    )


def _check_gangs(state: ClusterState) -> None:
    """All ranks of a gang have their leases, each on its own node, until the gang has ended."""
    for task_id, gang in state.gangs.items():
        task, shape = state.tasks[task_id], state.shapes[state.tasks[task_id].shape_id]
        leases = [state.leases[lease_id] for lease_id in gang.leases]
        _hold(task.status is TaskStatus.RUNNING, f"gang {task_id} is {task.status}")
        _hold(task.lease_id == gang.leases[0], f"gang {task_id} does not have the lease of its rank 0")
        _hold(len(leases) == shape.nodes > 1, f"gang {task_id} has {len(leases)} of {shape.nodes} ranks")
        _hold([lease.rank for lease in leases] == list(range(shape.nodes)), f"gang {task_id} is out of order")
        _hold(
            tuple(lease.node_id for lease in leases) == task.node_ids,
            f"gang {task_id} is on other nodes",
        )
        _hold(len(set(task.node_ids)) == shape.nodes, f"gang {task_id} has two ranks on a node")
        _hold(
            tuple(gpu_id for lease in leases for gpu_id in lease.gpu_ids) == task.gpu_ids
            and all(len(lease.gpu_ids) == shape.gpus for lease in leases),
            f"the GPUs of gang {task_id} differ from its leases",
        )
        _hold(any(not lease.ended for lease in leases), f"gang {task_id} has ended and still exists")
        _hold(
            gang.failed is None or all(lease.ended or lease.stopping for lease in leases),
            f"gang {task_id} failed, and a rank of it continues",
        )
    for task in state.tasks.values():
        is_gang = task.status is TaskStatus.RUNNING and state.shapes[task.shape_id].nodes > 1
        _hold(is_gang == (task.id in state.gangs), f"task {task.id} is a gang without ranks")


def _check_waiting(state: ClusterState) -> None:
    """A task that is held or waits for other tasks is not ready. Arrays respect their limits."""
    ready = {task_id for line in state.queue.lines() for task_id in line.ready}
    for task in state.tasks.values():
        waits = task.status is TaskStatus.PENDING
        _hold(waits or not state.is_apart(task), f"task {task.id} is {task.status}, held or waits for others")
        _hold(not (state.is_apart(task) and task.id in ready), f"task {task.id} is held and ready")
        known = task.id in ready or task.id in state.queue.back_off
        _hold(not waits or known != state.is_apart(task), f"task {task.id} waits and is forgotten")
    for task_id, awaited in state.after.items():
        _hold(bool(awaited.on) != (awaited.broken is not None), f"task {task_id} waits for nothing")
        for dependency in awaited.on:
            other = state.tasks.get(dependency.task_id)
            _hold(
                other is not None and not other.status.is_final and other.id < task_id,
                f"task {task_id} waits for {dependency.task_id}, which is over",
            )
    running: dict[TaskId, int] = {}
    for task in state.tasks.values():
        shape = state.shapes[task.shape_id]
        if shape.array_id and task.status is TaskStatus.RUNNING:
            running[shape.array_id] = running.get(shape.array_id, 0) + 1
            _hold(running[shape.array_id] <= shape.array_limit, f"array {shape.array_id} runs too many")
    for array_id, number in running.items():
        _hold(
            state.queue.running_of(array_id) == number, f"array {array_id} has a wrong count of running tasks"
        )
    for line in state.queue.lines():
        shape = line.shape
        full = bool(shape.array_id) and running.get(shape.array_id, 0) >= shape.array_limit
        _hold(line.array_full == full, f"line {line.number} has a wrong limit of its array")


def _check_gpus(state: ClusterState) -> None:
    leased = {gpu_id for lease in state.leases.values() for gpu_id in lease.gpu_ids}
    for gpu_id, gpu in state.gpus.items():
        _hold(gpu.id == gpu_id and gpu.node_id in state.nodes, f"GPU {gpu_id} is on no node")
        _hold(not gpu.gone or gpu_id in leased, f"GPU {gpu_id} is gone and not leased")
        past = state.health.get(gpu_id)
        health = Health.TRUSTED if past is None else past.state
        _hold(gpu.health is health, f"GPU {gpu_id} is {gpu.health}, its record says {health}")
    for gpu_id, past in state.health.items():
        _hold(past.gpu_id == gpu_id and past.node_id in state.nodes, f"the health of {gpu_id} is of no node")


def _check_reservations(state: ClusterState) -> None:
    """Reservations belong to tasks that could be placed, name known nodes, and hold exactly the demand."""
    for task_id, made in state.reservations.items():
        task = state.tasks.get(task_id)
        _hold(made.task_id == task_id and task is not None, f"reservation {task_id} has no task")
        if task is None:
            continue
        shape = state.shapes[task.shape_id]
        ready = task.status is TaskStatus.PENDING and not state.is_apart(task)
        _hold(ready, f"task {task_id} is {task.status} and has a reservation")
        _hold(
            len({place.node_id for place in made.places}) in {0, shape.nodes},  # 0: quota alone
            f"reservation {task_id} has ranks missing",
        )
        for place in made.places:
            _hold(place.node_id in state.nodes, f"reservation {task_id} is on no node")
            _hold(
                len(set(place.gpu_ids)) == shape.gpus, f"reservation {task_id} has {len(place.gpu_ids)} GPUs"
            )


def _check_numbers(state: ClusterState) -> None:
    _hold(all(0 < task_id < state.next_task_id for task_id in state.tasks), "a task id beyond the counter")
    _hold(
        all(0 < lease_id < state.next_lease_id for lease_id in state.leases), "a lease id beyond the counter"
    )
    _hold(
        all(0 < shape_id < state.next_shape_id for shape_id in state.shapes), "a shape id beyond the counter"
    )
    latest = max((max(task.created_at, task.ended_at) for task in state.tasks.values()), default=0)
    _hold(latest <= state.last_at, f"a task of {latest}, later than {state.last_at}")
    _hold(not state.keys, "idempotency keys of an earlier version that were not adopted")
    _check_keys(state.key_ring)


def _check_tokens(state: ClusterState) -> None:
    _hold(len(state.tokens) <= MAX_TOKENS, "too many tokens")
    for token_id, token in state.tokens.items():
        _hold(token.id == token_id, f"token {token_id} is stored under another id")
        _hold(len(token.keyed_hash) == HASH_BYTES, f"token {token_id} has no keyed hash")
        _hold(not (token.all_tenants and token.tenants), f"token {token_id} has all tenants and some")


def _check_secrets(state: ClusterState) -> None:
    _hold(len(state.secrets) <= MAX_SECRETS, "too many secrets")
    for name, secret in state.secrets.items():
        _hold(name == secret_id(secret.tenant_id, secret.name), f"secret {name} is stored under another name")
        _hold(0 < len(secret.sealed) <= MAX_SEALED_BYTES, f"secret {name} has no sealed value")
        _hold(secret.version > 0, f"secret {name} has no version")


def _check_keys(ring: KeyRing) -> None:
    anew = KeyRing()
    for keys in ring.by_tenant.values():
        ages = [created_at(value) for value in keys.values()]
        _hold(bool(ages) and ages == sorted(ages), "idempotency keys out of order")
    for packed in ring.packed():
        anew.add(packed)
    _hold((anew.count, anew.mark) == (ring.count, ring.mark), "the mark of the idempotency keys is wrong")
    oldest = min((created_at(packed.value) for packed in ring.packed()), default=0)
    _hold(not ring.count or ring.oldest_at <= oldest, "an idempotency key older than the oldest")


def _check_indexes(state: ClusterState) -> None:
    """Every index equals one derived again from the flat dicts."""
    rebuilt = ClusterState.from_parts(state.parts())
    # The ready tasks depend on the last time that the index processed: not compared while a task backs off.
    settled = not state.queue.back_off and not rebuilt.queue.back_off
    known, anew = _indexes(state, settled=settled), _indexes(rebuilt, settled=settled)
    for name, facts in known.items():
        _hold(facts == anew[name], f"differs from a rebuild: {name}")
    _check_standings(state)
    pending = sum(task.status is TaskStatus.PENDING for task in state.tasks.values())
    _hold(state.queue.count == pending, "the count of waiting tasks is wrong")
    for task_id, eligible_at in state.queue.back_off.items():
        _hold(state.tasks[task_id].eligible_at == eligible_at, f"task {task_id} backs off until a wrong time")


def _indexes(state: ClusterState, *, settled: bool) -> dict[str, object]:
    return {
        "the index of rooms": {node_id: room.facts() for node_id, room in state.rooms.by_node.items()},
        "the holders of GPUs": state.rooms.holders,
        "the counts of GPUs": state.rooms.counts,
        "the index of waiting tasks": _lines(state.queue),
        "the shapes, arrays and count of waiting tasks": state.queue.facts(),
        "the index of ended tasks": sorted(state.ended),
        "the dependents": state.dependents.facts(),
        "the ends of allocations": sorted(entry for entry in state.expiring if entry[2] in state.leases),
        "the accounts of tenants": _accounts(state),
        "the use of pools": _pools(state, ready=settled),
        "the stops that return quota": state.reclaims,
        "the crews": state.crews.facts(),
    }


def _check_standings(state: ClusterState) -> None:
    accounts = sorted(state.accounts.by_tenant.values(), key=lambda account: account.share)
    for one, other in pairwise(accounts):
        _hold(
            (one.standing < other.standing) is (one.share < other.share) and one.standing <= other.standing,
            f"tenants {one.tenant_id} and {other.tenant_id} are not ordered by their shares",
        )


def _lines(queue: Queue) -> dict[tuple[int, int], tuple[object, ...]]:
    """Whether a task backs off depends on the last time that this index processed, so both kinds count together."""
    return {
        (line.known.shape_id, line.lasts_ms): (line.shape, line.known.uses, sorted(line.ready + line.apart))
        for line in queue.lines()
    }


def _accounts(state: ClusterState) -> dict[TenantId, tuple[object, ...]]:
    """Accounts of tenants with tasks. Their use must match their leases."""
    return {
        tenant_id: account.facts()
        for tenant_id, account in state.accounts.by_tenant.items()
        if account.shapes or account.milli
    }


def _pools(state: ClusterState, *, ready: bool) -> dict[Pool | None, tuple[int, int, list[int]]]:
    settle_pools(state)
    return {
        pool: (use.used_milli, use.limit_milli, sorted(line.head for line in use.ready) if ready else [])
        for pool, use in state.queue.pools.items()
    }


def _hold(holds: bool, breach: str) -> None:
    if not holds:
        raise AssertionError(breach)
