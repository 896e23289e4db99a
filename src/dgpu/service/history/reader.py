"""The history: a SQLite file derived from the journal, read here. `writer` fills it, in the follower.

Live tasks are answered from memory. Tasks that the core has forgotten are marked and listed from here. Values of a
task's environment are never stored in it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from dgpu.core.model.ids import NO_TASK, GpuId, LeaseId, NodeId, TaskId, TenantId
from dgpu.core.model.task import WHOLE_MILLI, Constraint, Mount, Pool, Restart, TaskStatus, Wish
from dgpu.service.history.filters import (
    IDS_OF_KIND,
    Search,
    TaskFilters,
    all_of,
    bounds_of,
    kind_of,
    search_where,
    where_of,
)
from dgpu.service.history.past_words import Reach
from dgpu.service.history.schema import HISTORY_VERSION, MAX_KINDS_MERGED
from dgpu.service.sqlite_files import open_version_to_read

HISTORY_NAME = "history.sqlite"
MAKING = ".making"  # a file beside the history: the history exists but is not complete yet
MAX_ROWS = 1_000
MAX_TASKS = 1_000_000  # kept
_JSON_COLUMNS = frozenset(
    (
        "command", "constraints", "env_names", "gpu_ids", "gpu_models", "grid", "labels", "mounts", "node_ids",
        "notify", "ports", "secret_names", "signal",
    )
)  # fmt: skip


class PastTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task from the history. A time is 0 if the event never happened."""

    id: TaskId
    name: str
    tenant_id: TenantId
    pool: Pool
    priority: int
    gpus: int
    gpu_models: tuple[str, ...]
    gpu_memory_mb: int
    cpus_milli: int
    ram_mb: int
    timeout_ms: int
    max_retries: int
    restart: Restart
    allocation: bool
    command: str | tuple[str, ...]
    workdir: str
    labels: dict[str, str]
    created_at: int
    status: TaskStatus
    node_id: NodeId | None
    gpu_ids: tuple[GpuId, ...]
    attempt: int
    retries: int
    started_at: int
    finished_at: int
    exit_code: int | None
    reason: str
    error: str
    forgotten: bool  # False: the core still has it, with newer data
    nodes: int = 1
    array_id: TaskId = NO_TASK
    array_index: int = 0
    array_count: int = 0
    share_milli: int = WHOLE_MILLI
    constraints: tuple[Constraint, ...] = ()
    node_ids: tuple[NodeId, ...] = ()  # of a gang, by rank
    array_limit: int = 0
    env_names: tuple[str, ...] = ()
    secret_names: tuple[str, ...] = ()
    model_name: str = ""
    task_type: str = ""
    structure_n_atoms: int = 0
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    read_only_root: bool = False
    shm_mb: int = 0
    script_bytes: int = 0
    slurm_env: bool = False
    grid: dict[str, str] = {}
    signal: tuple[int, ...] = ()
    grace_ms: int = 0
    begins_ms: int = 0
    upload: str = ""
    notify: tuple[Wish, ...] = ()
    terminal: bool = False
    ports: tuple[int, ...] = ()
    priority_named: bool = False
    output_file: str = ""
    error_file: str = ""
    entrypoint: str = ""
    worker_of: str = ""
    ran_on: TaskId = NO_TASK


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: int
    attempt: int
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...]
    placed_at: int
    started_at: int
    ended_at: int
    exit_code: int | None
    reason: str
    error: str


class PastEvent(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    at: int
    type: str
    body: dict[str, Any]


class ForgottenPage(msgspec.Struct, frozen=True, kw_only=True):
    """All of it from one moment: after the group `index`."""

    tasks: list[PastTask]
    total: int
    index: int


class HistoryDamaged(Exception):  # noqa: N818 - the name states the failure
    """Nothing is lost: the journal has everything, and the follower rebuilds the file."""


class HistoryUnfinished(HistoryDamaged):
    """The history is being rebuilt."""


class History:
    """Reads from any thread. A missing history counts as empty; a history that is being rebuilt is not read."""

    def __init__(
        self,
        path: Path | str,
        on_damage: Callable[[], None] = lambda: None,
        is_made: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_damage` is called in the thread that found the damage. `is_made`: a missing file existed before."""
        self._path = Path(path)
        self._on_damage = on_damage
        self._is_made = is_made
        self._making = self._path.with_name(self._path.name + MAKING)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def task(self, task_id: TaskId) -> PastTask | None:
        """Includes tasks that are still live."""
        rows = self._rows("SELECT * FROM tasks WHERE id = ?", (task_id,))
        return _task(rows[0]) if rows else None

    def list_tasks(
        self,
        filters: TaskFilters,
        *,
        before_id: int | None = None,
        above_id: int = 0,
        limit: int = 100,
        live: bool = False,
        ended: bool = False,
    ) -> list[PastTask]:
        """Newest first, between `before_id` and `above_id`. `live`: also tasks of the core; `ended`: no others."""
        limit = min(limit, MAX_ROWS)
        where, values = where_of(filters, live=live, ended=ended)
        if not live and (len(values) > 1 or filters.pool is not None):
            kinds = self._kinds(filters)
            if kinds is not None and len(kinds) <= MAX_KINDS_MERGED:
                return self._of_kinds(kinds, before_id, above_id, limit)
        if before_id is not None:
            where, values = [*where, "id < ?"], [*values, before_id]
        if above_id:
            where, values = [*where, "id > ?"], [*values, above_id]
        query = f"SELECT * FROM tasks {all_of(where)} ORDER BY id DESC LIMIT ?"  # noqa: S608 - constant text
        return [_task(row) for row in self._rows(query, (*values, limit))]

    def forgotten_page(
        self,
        filters: TaskFilters,
        *,
        before_id: int | None,
        limit: int,
        above_id: int = 0,
        live: bool = False,
    ) -> ForgottenPage:
        """`live`: also ended tasks that are not marked as forgotten yet."""
        with self._reading() as connection:
            if connection is None:
                return ForgottenPage(tasks=[], total=0, index=0)
            connection.execute("BEGIN")
            try:
                return ForgottenPage(
                    index=self.reach().index,
                    tasks=self.list_tasks(
                        filters, before_id=before_id, above_id=above_id, limit=limit, live=live, ended=True
                    ),
                    total=self.count_tasks(filters),
                )
            finally:
                if self._connection is connection:  # a damaged one is closed by now
                    connection.execute("COMMIT")

    def search(
        self, filters: TaskFilters, search: Search, *, edge: int | None, limit: int, most: int, oldest: bool
    ) -> tuple[list[PastTask], int | None]:
        """Ended tasks beyond the id `edge`, including those that the core still has. Examines at most `most` tasks and
        returns the id at which it stopped; None: it reached the end.
        """
        where, values = map(list.__add__, where_of(filters, live=True), bounds_of(search))
        if edge is not None:
            where, values = [*where, "id > ?" if oldest else "id < ?"], [*values, edge]
        order = "ASC" if oldest else "DESC"
        looked_at = f"SELECT * FROM tasks {all_of(where)} ORDER BY id {order} LIMIT {most}"  # noqa: S608 - constant text
        found, wanted = search_where(search)
        query = f"SELECT * FROM ({looked_at}) {all_of(found)} ORDER BY id {order} LIMIT ?"  # noqa: S608 - the same
        rows = self._rows(query, (*values, *wanted, min(limit, MAX_ROWS)))
        stops = f"SELECT id FROM tasks {all_of(where)} ORDER BY id {order} LIMIT 1 OFFSET {most - 1}"  # noqa: S608
        stopped = self._rows(stops, tuple(values))
        return [_task(row) for row in rows], int(stopped[0]["id"]) if stopped else None

    def count_tasks(self, filters: TaskFilters) -> int:
        """Exact. Adds up one counter for each kind of task, so the number of tasks does not matter."""
        kinds = self._kinds(filters)
        if kinds is not None:
            return sum(kind["number"] for kind in kinds)
        where, values = where_of(filters, live=False)
        rows = self._rows(f"SELECT count(*) AS n FROM tasks {all_of(where)}", tuple(values))  # noqa: S608 - the same
        return int(rows[0]["n"]) if rows else 0

    def task_events(self, task_id: TaskId, *, limit: int = MAX_ROWS) -> list[PastEvent]:
        """In order. The submit of a batch is not stored as an event of each task: it is in the task's row."""
        query = """
            SELECT submitted_index AS journal_index, -1 AS position, created_at AS at, 'TasksSubmitted' AS type,
                   '{}' AS body FROM tasks WHERE id = ?1
            UNION ALL SELECT journal_index, position, at, type, body FROM task_events WHERE task_id = ?1
            ORDER BY journal_index, position LIMIT ?2"""
        return [_event(row) for row in self._rows(query, (task_id, min(limit, MAX_ROWS)))]

    def attempts(self, task_id: TaskId, *, limit: int = MAX_ROWS) -> list[PastAttempt]:
        query = "SELECT * FROM attempts WHERE task_id = ? ORDER BY attempt, lease_id LIMIT ?"
        return [_attempt(row) for row in self._rows(query, (task_id, min(limit, MAX_ROWS)))]

    def rank_of(self, lease_id: LeaseId) -> tuple[TaskId, int, int, NodeId] | None:
        """Task, attempt, rank and node of a lease. Leases of one attempt are numbered by rank."""
        query = """
            SELECT task_id, attempt, node, (SELECT count(*) FROM attempts AS other WHERE other.task_id = mine.task_id
            AND other.attempt = mine.attempt AND other.lease_id < mine.lease_id) AS rank
            FROM attempts AS mine WHERE lease_id = ?"""
        rows = self._rows(query, (lease_id,))
        return (rows[0]["task_id"], rows[0]["attempt"], rows[0]["rank"], rows[0]["node"]) if rows else None

    def reach(self) -> Reach:
        return Reach.of({row["name"]: row["value"] for row in self._rows("SELECT name, value FROM meta", ())})

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def another(self) -> History:
        """A reader with its own connection."""
        return History(self._path, self._on_damage, self._is_made)

    @property
    def path(self) -> Path:
        return self._path

    def rows(self, query: str, values: tuple[Any, ...] | dict[str, Any]) -> list[sqlite3.Row]:
        """For reports (usage.py)."""
        return self._rows(query, values)

    def _kinds(self, filters: TaskFilters) -> list[sqlite3.Row] | None:
        """Kinds of forgotten tasks that match the filters, with their numbers. None: an old file has no counters."""
        where, values = where_of(filters, live=True)
        query = f"SELECT * FROM task_counts {all_of([*where, 'number > 0'])}"  # noqa: S608 - constant text
        with self._reading() as connection:
            if connection is None:
                return []
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'task_counts'").fetchone():
                return None
            return connection.execute(query, values).fetchall()

    def _of_kinds(
        self, kinds: list[sqlite3.Row], before_id: int | None, above_id: int, limit: int
    ) -> list[PastTask]:
        """The newest of each kind, merged. A filter that matches few tasks does not scan all others."""
        below = (1 << 62) if before_id is None else before_id
        with self._reading() as connection:
            if connection is None:
                return []
            ids_of = [
                (row[0] for row in connection.execute(IDS_OF_KIND, (*kind_of(kind), below, above_id)))
                for kind in kinds
            ]
            ids = list(islice(merge(*ids_of, reverse=True), limit))
            query = f"SELECT * FROM tasks WHERE id IN ({','.join('?' * len(ids))}) ORDER BY id DESC"  # noqa: S608 - the same
            return [_task(row) for row in connection.execute(query, ids)]

    def _rows(self, query: str, values: tuple[Any, ...] | dict[str, Any]) -> list[sqlite3.Row]:
        with self._reading() as connection:
            return [] if connection is None else connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        with self._lock:
            try:
                yield self._connect()
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise  # busy, out of memory, a bug: the file itself is fine
                self._disconnect()
                self._on_damage()
                raise HistoryDamaged(str(error)) from error

    def _connect(self) -> sqlite3.Connection | None:
        """A rebuilt history is another file under the same name: follow the name."""
        self._refuse_unfinished()
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            self._disconnect()
            self._refuse_unfinished()
            if self._inode or self._is_made():
                raise sqlite3.DatabaseError("it was deleted") from None
            return None
        if self._connection is not None and inode == self._inode:
            return self._connection
        self._disconnect()
        with contextlib.suppress(sqlite3.OperationalError):  # being created at this moment: still empty
            connection = open_version_to_read(self._path, HISTORY_VERSION)
            if connection is not None:
                connection.row_factory = sqlite3.Row
                self._connection, self._inode = connection, inode
                return connection
        self._refuse_unfinished()
        if self._inode or self._is_made():
            raise sqlite3.DatabaseError("it is empty")
        return None

    def _refuse_unfinished(self) -> None:
        """A task that is still missing would look as if it had never existed."""
        if self._making.exists():
            self._disconnect()
            raise HistoryUnfinished("it is being rebuilt")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _task(row: sqlite3.Row) -> PastTask:
    fields = dict(row)
    del fields["submitted_index"]
    fields["tenant_id"], fields["node_id"] = fields.pop("tenant"), fields.pop("node")
    for name in _JSON_COLUMNS & fields.keys():
        fields[name] = msgspec.json.decode(fields[name])
    return msgspec.convert(fields, PastTask, strict=False)


def _attempt(row: sqlite3.Row) -> PastAttempt:
    fields = dict(row)
    fields["node_id"] = fields.pop("node")
    fields["gpu_ids"] = msgspec.json.decode(fields["gpu_ids"])
    return msgspec.convert(fields, PastAttempt)


def _event(row: sqlite3.Row) -> PastEvent:
    return PastEvent(
        index=row["journal_index"], at=row["at"], type=row["type"], body=msgspec.json.decode(row["body"])
    )
