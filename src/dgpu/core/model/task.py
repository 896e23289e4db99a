"""A task: its request (shape, detail) and its current state."""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from dgpu.core.model.array import Ranges, indexes
from dgpu.core.model.dependencies import Dependency
from dgpu.core.model.ids import NO_LEASE, NO_TASK, GpuId, LeaseId, NodeId, ShapeId, TaskId, TenantId
from dgpu.core.model.secrets import SecretUse

PRIORITY_LEVELS: Final = {"low": 10, "normal": 50, "high": 80, "critical": 100}
MEMORY_STEP_MB: Final = 256  # demands are rounded up to it, so that near-equal tasks share a shape

WHOLE_MILLI: Final = 1_000  # one GPU

# Requirements on a node's labels: (label, is, values). With `is` true the value must be among the values, else it must
# not be.
Constraint: TypeAlias = tuple[str, bool, tuple[str, ...]]

# A directory of the node in a container: (source, target, read-only).
Mount: TypeAlias = tuple[str, str, bool]

# A message about the task: (start | end | fail, ...), and the name of its target.
Wish: TypeAlias = tuple[tuple[str, ...], str]

# The label of nodes that run containers. A task with an image requires it.
CONTAINERS_LABEL: Final = "dgpu.containers"
CONTAINERS: Final = "docker"
RUNS_CONTAINERS: Final[Constraint] = (CONTAINERS_LABEL, True, (CONTAINERS,))  # of every task with an image


def in_steps(memory_mb: int) -> int:
    return -(-memory_mb // MEMORY_STEP_MB) * MEMORY_STEP_MB


def in_units(milli: int) -> int | str:
    """Whole units as a number, fractions as text: no float enters a message."""
    whole, part = divmod(milli, WHOLE_MILLI)
    return f"{whole}.{part:03d}".rstrip("0") if part else whole


class Pool(enum.StrEnum):
    ONLINE = "online"
    BATCH = "batch"


class TaskStatus(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"  # from placement on: it holds a lease
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in {TaskStatus.PENDING, TaskStatus.RUNNING}


class Restart(enum.StrEnum):
    NEVER = "never"
    ON_FAILURE = "on-failure"  # an exit code other than 0 is retried like an infrastructure failure
    ALWAYS = "always"  # a service: starts again whenever it ends


class Outcome(enum.StrEnum):
    """How an attempt ended, according to its agent."""

    EXITED = "exited"  # by itself, with an exit code
    SIGNALED = "signaled"  # by a signal that the agent did not send
    TIMEOUT = "timeout"
    STOPPED = "stopped"  # by order of the scheduler
    CANNOT_START = "cannot_start"  # the task's own fault: no such command, no such directory
    NODE_FAULT = "node_fault"  # the node's fault: keeper gone, disk full, out of processes
    OUT_OF_MEMORY = "out_of_memory"  # on a GPU: reported at its end, or it exceeded its share
    RAISED = "raised"  # a function call: an exception
    CANNOT_ENCODE = "cannot_encode"  # a function call: its result is no JSON or msgpack, or is too large


class Shape(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """All facts that placement uses. Tasks of one shape are interchangeable, except for their age."""

    tenant_id: TenantId
    pool: Pool
    priority: int
    gpus: int
    gpu_models: tuple[str, ...] = ()  # alternatives; empty: any
    gpu_memory_mb: int = 0  # needed on each GPU
    cpus_milli: int = 0  # 0: not counted
    ram_mb: int = 0
    share_milli: int = WHOLE_MILLI  # below 1,000: shares its one GPU; its part of the memory counts, too
    constraints: tuple[Constraint, ...] = ()  # sorted; all must hold
    model: str = ""  # `model_name` of the detail: GPUs with this model loaded are preferred
    nodes: int = 1  # more: a gang; number of nodes at once, each with all of the above
    array_id: TaskId = NO_TASK  # of an array with a limit: its tasks have their own line
    array_limit: int = 0  # maximum of its tasks that run at once
    app: str = ""  # of a function call: it gets a slot of a worker of this app, and no GPUs of its own


class WorkerSetup(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Part of the detail of a worker's task: what its node needs to run it as a worker."""

    app_id: str
    python: str = "python3"
    python_path: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()  # models that are loaded at its start
    max_models: int = 2  # loaded at once
    model_ttl_ms: int = 3_600_000  # an unused model is unloaded after this time
    heartbeat_ms: int = 10_000
    heartbeat_timeout_ms: int = 30_000


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that placement never uses. They stay one encoded blob until an agent or a user needs them."""

    name: str = ""
    command: str | tuple[str, ...] = ""  # a string is for the shell, a list is argv
    env: dict[str, str] = {}
    workdir: str = ""
    labels: dict[str, str] = {}
    model_name: str = ""
    task_type: str = ""
    structure_n_atoms: int = 0
    sealed_env: str = (
        ""  # the values of `env`, which then has names only; empty: `env` is in clear (older journals)
    )
    secrets: dict[str, SecretUse] = {}  # by name
    image: str = ""  # runs in a container of this image; empty: as the node's configuration says
    mounts: tuple[Mount, ...] = ()
    read_only_root: bool = False
    shm_mb: int = 0  # 0: the node's default
    script: str = ""  # runs this text as a file; `command` is its name and its arguments
    slurm_env: bool = False  # also gets the variables that Slurm sets
    grid: dict[str, tuple[str, ...]] = {}  # of an array: the index of a task selects its values
    signal: tuple[int, ...] = ()  # its number, and how many ms before the time limit
    grace_ms: int = 0  # from TERM to KILL; 0: the node's default
    upload: str = ""  # sha256 of an archive that is unpacked into the task's new directory; empty: none
    notify: tuple[Wish, ...] = ()
    terminal: bool = False  # its program has a terminal
    ports: tuple[
        int, ...
    ] = ()  # TCP ports that its program listens on; the node gives each of them a free one
    priority_named: bool = False  # its priority was given as a level's name
    output_file: str = ""  # gets a copy of its output, on its node; a path with patterns (wire.file_patterns)
    error_file: str = ""  # the same for stderr; empty: goes to output_file, too
    entrypoint: str = ""  # of a function call: package.module:function
    args: bytes = b""  # of a function call: msgpack of [args, kwargs]; empty: no arguments
    args_ref: str = ""  # sha256 of the same, if it is large
    worker: WorkerSetup | None = None  # of a worker's task


class TaskSpec(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """A submitted task in normal form."""

    shape: Shape
    detail: bytes  # TaskDetail as JSON
    timeout_ms: int | None = None  # None: the pool's default; 0: no limit
    max_retries: int = 3
    restart: Restart = Restart.NEVER
    allocation: bool = False  # holds its GPUs, runs no command
    held: bool = False  # waits until it is released
    after: tuple[Dependency, ...] = ()  # sorted by task, each once
    array: Ranges = ()  # the indexes of an array: one task for each
    array_limit: int = 0  # 0: none
    expected_ms: int = 0  # without a time limit: run time of similar tasks at submit; 0: unknown
    begins_ms: int = 0  # not placed before this time of the wall clock
    worker_of: str = ""  # the app whose calls it runs; empty: it is no worker


class Task(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """gc=False here and elsewhere: values are acyclic, so the collector need not track many thousands of them."""

    id: TaskId
    shape_id: ShapeId
    detail: bytes
    created_at: int
    timeout_ms: int = 0  # 0: no limit
    max_retries: int = 0
    restart: Restart = Restart.NEVER
    allocation: bool = False
    status: TaskStatus = TaskStatus.PENDING
    attempt: int = 0  # of the current or last placement, from 1
    retries: int = 0  # attempts that counted against max_retries
    eligible_at: int = 0  # not placed before this time: a back-off, or the time that it asked for
    lease_id: LeaseId = NO_LEASE
    node_id: NodeId | None = None  # of the current or last placement
    gpu_ids: tuple[GpuId, ...] = ()
    started_at: int = 0
    finished_at: int = 0
    exit_code: int | None = None
    reason: str = ""  # one word for programs: timeout, exit_code, signal, cancelled, node_lost, ...
    error: str = ""  # one line for people
    cancelling: bool = False
    ended_at: int = (
        0  # when its end was journaled; `finished_at` may be much earlier if its node was disconnected
    )
    held: bool = False  # waits until it is released
    array_id: TaskId = NO_TASK  # the first task of its array
    array_index: int = 0
    array_count: int = 0  # tasks of the array
    node_ids: tuple[NodeId, ...] = ()  # of a gang, by rank; `node_id` is the node of rank 0
    grown: bool = False  # ran out of memory, and got a larger demand
    expected_ms: int = 0  # see TaskSpec
    begins_ms: int = 0  # see TaskSpec; until its first placement, `eligible_at` follows from it
    worker_of: str = ""  # see TaskSpec
    ran_on: TaskId = NO_TASK  # of a function call: the worker of the current or last placement


def new_tasks(
    spec: TaskSpec, first_id: TaskId, count: int, *, shape_id: ShapeId, at: int, eligible_at: int = 0
) -> dict[TaskId, Task]:
    """New tasks by age. They are created here because this module is never compiled: so a number that many tasks share,
    or that is also a key, is one object for all. That saves a tenth of their memory.
    """
    timeout_ms = spec.timeout_ms or 0
    tasks = {
        task_id: Task(
            id=task_id,
            shape_id=shape_id,
            detail=spec.detail,
            created_at=at,
            timeout_ms=timeout_ms,
            max_retries=spec.max_retries,
            restart=spec.restart,
            allocation=spec.allocation,
            held=spec.held,
            expected_ms=spec.expected_ms,
            begins_ms=spec.begins_ms,
            eligible_at=eligible_at,
            worker_of=spec.worker_of,
        )
        for task_id in map(TaskId, range(first_id, first_id + count))
    }
    if spec.array:
        for index, (task_id, task) in zip(indexes(spec.array), list(tasks.items()), strict=True):
            tasks[task_id] = replace(task, array_id=first_id, array_index=index, array_count=count)
    return tasks
