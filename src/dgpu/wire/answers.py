"""Responses about tasks, their queue and the scheduler, encoded by the service and decoded by the SDK."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any, Literal, TypeAlias

import msgspec

from dgpu.wire.array_answers import ArrayAnswer
from dgpu.wire.call_answers import ProgressAnswer
from dgpu.wire.connections import Connections
from dgpu.wire.usage_answers import TaskUsage
from dgpu.wire.wall_time import SHOWN

PROBLEM_JSON = "application/problem+json"

StatusName: TypeAlias = Literal["pending", "running", "success", "failed", "cancelled"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An older client ignores fields that a newer server adds."""


class FieldError(Answer, frozen=True, kw_only=True):
    path: str
    detail: str
    code: str = "invalid"
    facts: dict[str, Any] = {}


class Problem(Answer, frozen=True, kw_only=True):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = []
    request_id: str = ""
    facts: dict[str, Any] = {}  # the values in `detail`, for texts in other languages


class NotMasterProblem(Problem, frozen=True, kw_only=True):
    """Another scheduler can answer the request."""

    master: str = ""  # its URL; empty: none is known


class Submitted(Answer, frozen=True, kw_only=True):
    task_id: str  # of an array: the first
    status: str
    created_at: str
    count: int = 1  # tasks of an array; their ids are consecutive

    @property
    def task_ids(self) -> list[str]:
        first = int(self.task_id.removeprefix("task-"))
        return [f"task-{number}" for number in range(first, first + self.count)]


class Retried(Answer, frozen=True, kw_only=True):
    task_id: str  # of the new task
    status: str
    created_at: str
    retry_of: str
    count: int = 1  # tasks of an array


class SubmittedMany(Answer, frozen=True, kw_only=True):
    task_ids: list[str]


class Cancelled(Answer, frozen=True, kw_only=True):
    cancelled: int


class Dependency(Answer, frozen=True, kw_only=True):
    task_id: str
    when: str


class Attempt(Answer, frozen=True, kw_only=True):
    attempt: int
    node: str  # that of rank 0
    nodes: list[str] = []
    gpus: list[str] = []
    placed_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    reason: str = ""
    error: str = ""
    usage: TaskUsage | None = None  # None: not measured, or it runs


class ReservationAnswer(Answer, frozen=True, kw_only=True):
    """The reservation of a waiting task: no later task may delay it."""

    at: str | None = None  # it starts by then; None: unknown
    nodes: list[str]
    gpus: list[str] = []
    waits_for: list[str] = []  # running tasks on these GPUs, the first 16
    waits_for_total: int = 0
    made_at: str


class TaskAnswer(Answer, frozen=True, kw_only=True):
    task_id: str
    name: str = ""
    tenant_id: str
    pool: str
    status: StatusName
    priority: int | str  # a level's name if the task was submitted with one and its number has one
    priority_value: int  # always the number
    gpu_count: int
    gpu_model: list[str] = []
    gpu_memory_mb: int = 0
    shared: bool = False
    gpu_share: float = 1
    constraints: list[str] = []
    cpus: float = 0
    ram_mb: int = 0
    nodes: int = 1  # asked for; more than 1: each has gpu_count GPUs
    allocated_gpus: list[str] = []  # their UUIDs
    allocated_gpu_names: list[str] = []  # in the same order, like n1:0; the UUID of a GPU that was removed
    allocated_nodes: list[str] = []  # all of them, by rank
    node: str | None = None  # that of rank 0
    attempt: int = 0
    attempts: list[Attempt] = []  # in order, the latest hundred; only in the response for one task
    retries: int = 0
    max_retries: int = 0
    restart: str = "never"
    allocation: bool = False
    held: bool = False
    after: list[Dependency] = []  # open dependencies
    array_id: str | None = None  # the first task of its array; as an id in a call, it means the array
    element_id: str | None = None  # like task-46_3: an id that means only this task of an array
    array_index: int | None = None
    array_count: int | None = None
    array_limit: int | None = None  # tasks of the array that may run at once
    grid: dict[str, str] = {}  # its values, which are also in its name and command
    array: ArrayAnswer | None = None  # its progress, if the call named the array, or in a folded list
    cancelling: bool = False
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    error: str = ""
    reason: str = ""  # one word: why it ended, or why it waits
    waiting: str = ""  # one line: why it waits
    blockers: list[dict[str, Any]] = []  # the reasons in `waiting`: the code and the facts of each
    command: str | list[str] = ""
    script_bytes: int = 0  # more than 0: a script of this size was sent; `command` is its name and arguments
    slurm_env: bool = False
    env: list[str] = []  # names only
    secrets: list[str] = []  # names only
    workdir: str = ""  # where it runs or last ran; in lists, the submitted one
    own_workdir: bool = False  # created for the attempt; executor.workdir_retention deletes it
    timeout_seconds: float | None = None
    signal: str = ""  # like USR1@300: before the time limit and at a pre-emption
    grace_seconds: float | None = None  # from TERM to KILL; None: the node's setting
    notify: list[str] = []  # like end=slack: events and the name of the target
    begin_at: str | None = None  # it was asked not to start before
    labels: dict[str, str] = {}
    model_name: str = ""
    task_type: str = ""
    structure_n_atoms: int = 0
    image: str = ""  # empty: not in a container, or in the node's default image
    mounts: list[str] = []  # like /data:/data:ro
    read_only_root: bool = False
    shm_mb: int = 0
    upload: str = ""  # sha256 of the archive that its directory was made from
    terminal: bool = False
    ports: list[int] = []
    output_file: str = ""
    error_file: str = ""
    entrypoint: str = ""  # of a function call
    worker: str | None = None  # of a function call: the task of the worker that runs it, or ran it last
    worker_of: str = ""  # of a worker: the app of its calls
    progress: ProgressAnswer | None = None  # of a function call that runs
    reservation: ReservationAnswer | None = None
    usage: TaskUsage | None = None  # of its last attempt; only in the response for one task


class TaskPage(Answer, frozen=True, kw_only=True):
    tasks: list[TaskAnswer]
    total: int
    total_is_exact: bool = True  # False: a search counts only tasks found up to this page
    next_cursor: str | None = None


class TaskEvent(Answer, frozen=True, kw_only=True):
    index: int  # of the journal
    at: str
    type: str
    facts: dict[str, Any] = {}


class TaskEvents(Answer, frozen=True, kw_only=True):
    task_id: str
    events: list[TaskEvent]


class QueueEntry(Answer, frozen=True, kw_only=True):
    position: int
    task_id: str
    name: str = ""
    command: str | list[str] = ""
    allocation: bool = False
    array_index: int | None = None
    array_id: str | None = None
    tenant_id: str
    pool: str
    priority: int | str  # as in TaskAnswer
    priority_value: int
    gpu_count: int
    nodes: int = 1  # asked for; more than 1: each has gpu_count GPUs
    created_at: str
    eligible_at: str | None = None  # end of the back-off
    reserved_start: str | None = None  # it starts by then; None with nodes: unknown
    reserved_nodes: list[str] = []  # empty: it holds no reservation


class QueuePage(Answer, frozen=True, kw_only=True):
    queue: list[QueueEntry]
    total: int


class Removed(Answer, frozen=True, kw_only=True):
    id: str
    removed: bool = True


class SessionAnswer(Answer, frozen=True, kw_only=True):
    access: str  # how the client has access: open | user | token | cookie


class CliSignIn(Answer, frozen=True, kw_only=True):
    """The command line as a public client of the identity provider."""

    issuer: str
    client_id: str
    scopes: list[str]


class SignInMethods(Answer, frozen=True, kw_only=True):
    """How a browser can sign in. A token is always possible."""

    oidc: str | None = None  # the name of the identity provider
    cli: CliSignIn | None = None  # None: dgpu login --oidc is not possible


class SignInAddress(Answer, frozen=True, kw_only=True):
    url: str  # at the identity provider


class SessionCode(Answer, frozen=True, kw_only=True):
    """Opens the dashboard once."""

    code: str
    url_path: str
    expires_in_seconds: int


class Health(Answer, frozen=True, kw_only=True):
    status: str
    version: str


class Ready(Answer, frozen=True, kw_only=True):
    ready: bool
    role: str
    epoch: int
    journal_index: int = 0
    storage_full: bool = False
    history_lag: int | None = None  # groups that the history has not read yet
    detail: str = ""
    epoch_unknown: str = ""  # why nodes are refused: they obeyed an epoch that the journal does not contain
    connections: Connections | None = None
    clock_jump_seconds: float = 0  # change of the wall clock during the last 10 minutes
    clock_error_seconds: float = 0  # the wall clock minus the shown time, until it follows
    clocks_ahead_seconds: dict[str, float] = {}  # nodes with a wall clock that differs by more than 5 s
    lag_ms: int | None = (
        0  # time since this scheduler last knew that it had everything; None: it has never known
    )
    master: str = ""  # URL of the scheduler that leads; empty: this one is alone, or none is known
    engine: str = ""  # why the engine of the journal cannot be used; empty: it can, or there is none
    schedulers: list[str] = []  # URLs of all known schedulers; empty: this one is alone


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_MS, _LAST_MS = -30_610_224_000_000, 253_402_300_799_999  # years of four digits


def instant(at_ms: int) -> str:
    """RFC 3339, UTC, milliseconds, of a time of the journal."""
    return wall_instant(SHOWN.wall_ms(at_ms))


def wall_instant(wall_ms: int) -> str:
    """The same of a time of the wall clock."""
    second, milli = divmod(min(max(wall_ms, _FIRST_MS), _LAST_MS), 1000)
    return f"{_second(second)}.{milli:03d}Z"


def instant_or_none(at_ms: int) -> str | None:
    return instant(at_ms) if at_ms else None


@functools.lru_cache(maxsize=1024)
def _second(second: int) -> str:
    return (_EPOCH + dt.timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")
