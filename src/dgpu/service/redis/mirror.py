"""A read-only picture of the queue in Redis: a sorted set, a hash for each task, a stream of events.

The journal stays the source of truth: nothing is read back from Redis but a mark, whose absence means that Redis lost
its data. The mirror never waits in the way of the scheduler: events only note which tasks changed, and their present
state is written a moment later. If too many changed, or Redis was away, everything is written anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import structlog

from dgpu.core import events as e
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import Task, TaskDetail, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.event_texts import TEXTS, count_of, facts, named_tasks
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.redis.resp import Connection, RedisFailed, Target, encode, words
from dgpu.wire.answers import instant

MAX_TOUCHED: Final = 200_000  # tasks; then all are written anew
MAX_EVENTS: Final = 10_000  # in the stream, and not yet written to it
AT_A_TIME: Final = 500  # tasks read from the state in one turn
PAUSE_SECONDS: Final = 0.1  # changes within it are written together
LOOK_SECONDS: Final = 1.0  # how soon a loss of Redis' data is noticed
FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 30.0
_TOP_LEVEL: Final = 100
_LEVEL: Final = 10**12

_decode_detail = msgspec.json.Decoder(TaskDetail).decode
_log = structlog.get_logger("dgpu.redis")


class Mirror:
    def __init__(self, runtime: Runtime, target: Target, prefix: str) -> None:
        self._runtime = runtime
        self._target = target
        self._prefix = prefix
        self._mark = secrets.token_hex(8)
        self._touched: dict[TaskId, None] = {}  # an ordered set
        self._events: deque[tuple[int, e.Event]] = deque(maxlen=MAX_EVENTS)
        self._missed = 0  # events that found no room there
        self._unsure: list[bytes] = []  # commands that Redis has not confirmed
        self._must_renew = True
        self._changed = asyncio.Event()
        self.is_current = False  # everything committed so far is written
        self.retry_s = FIRST_RETRY_SECONDS

    def on_group(self, group: CommittedGroup) -> None:
        """Called by the scheduler's loop for every group: it must cost next to nothing."""
        for event in group.events:
            if len(self._touched) < MAX_TOUCHED:
                self._touched.update(dict.fromkeys(tasks_of(event)))
            else:
                self._must_renew = True
            if type(event) in TEXTS:
                self._missed += len(self._events) == MAX_EVENTS
                self._events.append((group.index, event))
        self.is_current = False
        self._changed.set()

    async def run(self) -> None:
        while True:
            try:
                await self._follow_once()
            except RedisFailed as error:
                _log.warning(
                    "redis_unavailable", host=self._target.host, reason=str(error), retry_s=self.retry_s
                )
            except Exception:  # noqa: BLE001 - a task that cannot be written must not end the mirror for good
                _log.exception("redis_mirror_failed", retry_s=self.retry_s)
            self.is_current = False
            await asyncio.sleep(self.retry_s)
            self.retry_s = min(MAX_RETRY_SECONDS, self.retry_s * 2)

    async def _follow_once(self) -> None:
        """Over one connection, until it fails."""
        connection = await Connection.open(self._target)
        try:
            self._must_renew = True  # nothing is known about the content
            await self._follow(connection)
        finally:
            connection.close()

    async def _follow(self, connection: Connection) -> None:
        while True:
            (mark,) = await connection.call(encode("GET", self._key("mirror")))
            if self._must_renew or mark != self._mark.encode():
                await self._renew(connection)
            await self._write_changes(connection)
            if not (self._touched or self._events or self._missed or self._must_renew):
                self.is_current = True
                self.retry_s = FIRST_RETRY_SECONDS
                self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _renew(self, connection: Connection) -> None:
        """Writes a second queue and swaps it in, so that readers never see an empty one. Hashes are written in place;
        those of tasks that are forgotten since are deleted last.
        """
        self._must_renew = False
        self._touched.clear()
        task_ids = await self._runtime.read(lambda state: tuple(state.tasks))
        new_queue, renewed = self._key("task_queue.new"), self._key("tasks.new")
        await connection.call(encode("DEL", new_queue, renewed))
        for some in _portions(task_ids):
            rows = await self._runtime.read(functools.partial(_rows, task_ids=some))
            await self._write(connection, rows, new_queue)
            names = [self._hash_of(row) for row in rows if row.fields]
            if names:
                await connection.call(encode("SADD", renewed, *names))
        await self._drop_forgotten(connection, renewed)
        swap = encode("RENAME", new_queue, self._key("task_queue"))
        (exists,) = await connection.call(encode("EXISTS", new_queue))
        await connection.call(
            swap if exists else encode("DEL", self._key("task_queue")),
            encode("SET", self._key("mirror"), self._mark),
        )
        _log.info("redis_mirrored", tasks=len(task_ids))

    async def _drop_forgotten(self, connection: Connection, renewed: str) -> None:
        """`tasks` names all hashes of the mirror, also after a break in here: a name leaves it after its hash."""
        names, forgotten = self._key("tasks"), self._key("tasks.forgotten")
        await connection.call(encode("SDIFFSTORE", forgotten, names, renewed), encode("DEL", renewed))
        while True:
            (found,) = await connection.call(encode("SPOP", forgotten, AT_A_TIME))
            if not isinstance(found, list) or not found:
                return
            gone = [each for each in found if isinstance(each, bytes)]
            await connection.call(encode("DEL", *gone), encode("SREM", names, *gone))

    async def _write_changes(self, connection: Connection) -> None:
        while self._touched:
            touched, self._touched = self._touched, {}  # if this fails, everything is written anew
            for some in _portions(tuple(touched)):
                rows = await self._runtime.read(functools.partial(_rows, task_ids=some))
                await self._write(connection, rows, self._key("task_queue"))
        while self._unsure or self._events or self._missed:
            if not self._unsure:
                self._unsure = [self._added(fields) for fields in self._next_events()]
            await connection.call(*self._unsure)
            self._unsure = []

    def _next_events(self) -> Iterator[list[str | bytes]]:
        if self._missed:
            told = msgspec.json.encode({"count": self._missed})
            self._missed = 0
            yield ["event", "events_missed", "facts", told]
        for _ in range(min(AT_A_TIME, len(self._events))):
            yield _event_fields(*self._events.popleft())

    def _added(self, fields: list[str | bytes]) -> bytes:
        return encode("XADD", self._key("events"), "MAXLEN", "~", MAX_EVENTS, "*", *fields)

    async def _write(self, connection: Connection, rows: Sequence[_Row], queue: str) -> None:
        commands: list[bytes] = []
        for row in rows:
            name = self._hash_of(row)
            if row.score is None:
                commands.append(encode("ZREM", queue, row.name))
            else:
                commands.append(encode("ZADD", queue, row.score, row.name))
            if row.fields:  # always the same names: the hash is never absent in between
                commands += [
                    encode("HSET", name, *words(row.fields)),
                    encode("SADD", self._key("tasks"), name),
                ]
            else:
                commands += [encode("DEL", name), encode("SREM", self._key("tasks"), name)]
        if commands:
            await connection.call(*commands)

    def _hash_of(self, row: _Row) -> str:
        return self._key(f"task:{row.name}")

    def _key(self, name: str) -> str:
        return self._prefix + name


class _Row(msgspec.Struct, frozen=True):
    name: str
    score: int | None  # None: it does not wait
    fields: list[tuple[str, str]]  # empty: the task is forgotten


def score_of(priority: int, submitted_ms: int) -> int:
    """The first in the queue has the lowest score. Exact as a double of Redis."""
    return (_TOP_LEVEL - priority) * _LEVEL + submitted_ms


def tasks_of(event: e.Event) -> Iterable[TaskId]:
    if isinstance(event, e.TasksSubmitted):
        return map(TaskId, range(event.first_id, event.first_id + count_of(event)))
    if isinstance(event, e.TasksForgotten):
        return event.task_ids
    if (several := named_tasks(event)) or not hasattr(event, "task_id"):
        return several
    return (event.task_id,)


def _rows(state: ClusterState, task_ids: Iterable[TaskId]) -> list[_Row]:
    return [_row(state, task_id, state.tasks.get(task_id)) for task_id in task_ids]


def _row(state: ClusterState, task_id: TaskId, task: Task | None) -> _Row:
    name = task_name(task_id)
    if task is None:
        return _Row(name, None, [])
    shape = state.shapes[task.shape_id]
    waits = task.status is TaskStatus.PENDING
    fields = [
        ("status", task.status.value),
        ("name", _decode_detail(task.detail).name),
        ("tenant_id", shape.tenant_id),
        ("pool", shape.pool.value),
        ("priority", str(shape.priority)),
        ("gpu_count", str(shape.gpus)),
        ("created_at", instant(task.created_at)),
        ("node", task.node_id or ""),
        ("attempt", str(task.attempt)),
        ("exit_code", "" if task.exit_code is None else str(task.exit_code)),
        ("reason", task.reason),
    ]
    score = score_of(shape.priority, state.wall_ms(task.created_at)) if waits else None
    return _Row(name, score, fields)


def _event_fields(index: int, event: e.Event) -> list[str | bytes]:
    told = msgspec.json.encode(facts(event))
    return ["index", str(index), "event", TEXTS[type(event)].name, "at", instant(event.at), "facts", told]


def _portions(task_ids: tuple[TaskId, ...]) -> Iterator[tuple[TaskId, ...]]:
    for start in range(0, len(task_ids), AT_A_TIME):
        yield task_ids[start : start + AT_A_TIME]


@contextlib.asynccontextmanager
async def mirrored_queue(runtime: Runtime, target: Target, prefix: str) -> AsyncIterator[None]:
    mirror = Mirror(runtime, target, prefix)
    unsubscribe = runtime.subscribe(mirror.on_group)
    running = asyncio.create_task(mirror.run(), name="redis")
    try:
        yield
    finally:
        unsubscribe()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
