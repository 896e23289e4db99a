"""Clients that submit, sometimes cancel, and retry with the same key until they get an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from dgpu.core.commands import CancelTasks, Command, ReleaseTasks, SubmitTasks
from dgpu.core.events import TasksSubmitted
from dgpu.core.model.dependencies import Dependency, When
from dgpu.core.model.ids import TaskId, TenantId
from dgpu.core.model.task import Pool, Shape, TaskSpec
from dgpu.core.rejections import (
    AlreadySubmitted,
    DependencyForgotten,
    DependencyNeverMet,
    NeverFits,
    StorageFull,
    TooBusy,
    UnknownDependency,
)
from dgpu.sim.checkers import Checkers, Violation
from dgpu.sim.history import SimHistory
from dgpu.sim.scheduler_host import Answer, Look
from dgpu.sim.world import World

_ASK_AGAIN_MS = 2_000
MAX_READS = 300  # per world: endless reads would keep it from coming to rest


class Service(Protocol):
    """The scheduler, or several of them, as clients see it. A call may never be answered."""

    read_in_flight: Callable[[], None]

    @property
    def history(self) -> SimHistory: ...

    def execute(self, command: Command, answer: Answer) -> None: ...

    def read(self, look: Look) -> None: ...


class Workload:
    """`gives_up`: some clients do not repeat a submit that was certainly not stored."""

    def __init__(
        self, world: World, scheduler: Service, checkers: Checkers, *, gives_up: bool = False
    ) -> None:
        self._world = world
        self._scheduler = scheduler
        self._checkers = checkers
        self._gives_up = gives_up
        self._sent: dict[str, int] = {}  # requests by key
        self._unanswered: set[str] = set()
        self._lost = False  # dependencies of a submit may be lost
        self._is_plain = world.chance.random() < 0.5  # tasks on one node without dependencies
        self._reads_left = MAX_READS
        scheduler.read_in_flight = self._read_all
        self.submits = 0

    @property
    def is_answered(self) -> bool:
        return not self._unanswered

    def plan(self, submits: int, over_ms: int) -> None:
        for number in range(submits):
            command = self._submit(f"key-{number}")
            self._world.after(
                self._world.between(0, over_ms),
                lambda c=command: self._ask(self._with_dependency(c)),  # type: ignore[misc]
            )
        self.submits += submits

    def plan_one(self, command: SubmitTasks, over_ms: int) -> None:
        self._world.after(self._world.between(0, over_ms), lambda: self._ask(command))
        self.submits += 1

    def _submit(self, key: str) -> SubmitTasks:
        chance = self._world.chance
        long = chance.random() < 0.35
        times_out = chance.random() < 0.1
        detail = {
            "times_out": times_out,
            "ms": self._world.between(30_000, 120_000)
            if long or times_out
            else self._world.between(10, 8_000),
            "code": 1 if chance.random() < 0.1 else 0,
        }
        nodes = 1 if self._is_plain else chance.choice((1, 1, 1, 2, 3))
        shape = Shape(
            tenant_id=TenantId("default"),
            pool=Pool.BATCH,
            priority=chance.choice((10, 50, 50, 80)),
            gpus=chance.choice((0, 1, 1, 1, 2)) if nodes == 1 else 1,
            nodes=nodes,
        )
        count = self._world.between(1, 3)
        is_array = not self._is_plain and chance.random() < 0.2
        spec = TaskSpec(
            shape=shape,
            detail=json.dumps(detail).encode(),
            timeout_ms=self._world.between(100, 20_000) if times_out else 0,
            max_retries=1_000,
            held=not self._is_plain and chance.random() < 0.1,
            array=((1, count, 1),) if is_array else (),
            array_limit=1 if is_array and count > 1 else 0,
        )
        return SubmitTasks(entries=((count, spec),), idempotency_key=key, fingerprint=key)

    def _with_dependency(self, command: SubmitTasks) -> SubmitTasks:
        """Depends on an acknowledged task; a retry sends the same request."""
        known = sorted(task_id for ids in self._checkers.acknowledged.values() for task_id in ids)
        if self._is_plain or not known or self._world.chance.random() > 0.2:
            return command
        ((count, spec),) = command.entries
        when = self._world.chance.choice(tuple(When))
        after = (Dependency(task_id=self._world.chance.choice(known), when=when),)
        return replace(command, entries=((count, replace(spec, after=after)),))

    def _ask(self, command: SubmitTasks) -> None:
        key = command.idempotency_key
        self._unanswered.add(key)

        def answer(result: object) -> None:
            if isinstance(result, AlreadySubmitted):
                self._told(command, result.first_id, result.count)
            elif isinstance(result, tuple) and isinstance(result[0], TasksSubmitted):
                self._told(command, result[0].first_id, sum(count for count, _ in command.entries))
            elif isinstance(result, NeverFits | DependencyNeverMet | DependencyForgotten):
                # No large enough node had registered yet, or the dependency ended with another result or long ago.
                self._unanswered.discard(key)
            elif self._lost and isinstance(result, UnknownDependency):
                self._unanswered.discard(key)  # its dependency is lost
            elif isinstance(result, StorageFull) and self._gives_up and self._sent[key] == 1:
                self._unanswered.discard(key)  # no other request of it can still be decided
            elif isinstance(result, StorageFull | TooBusy):
                # Retried later, with the same key. A scheduler that was stopped gets the retries of all clients.
                pass
            else:
                raise Violation(f"submit {key} was answered by {result}")

        def again() -> None:
            if key in self._unanswered:
                self._ask(command)

        self._send(command, answer)
        if (
            self._world.chance.random() < 0.1 and key in self._unanswered
        ):  # an impatient client sends it twice
            self._send(command, answer)
        self._world.after(_ASK_AGAIN_MS, again)

    def _send(self, command: SubmitTasks, answer: Answer) -> None:
        self._sent[command.idempotency_key] = self._sent.get(command.idempotency_key, 0) + 1
        self._scheduler.execute(command, answer)

    def _read_now_and_then(self, task_ids: tuple[TaskId, ...]) -> None:
        def read() -> None:
            for task_id in task_ids:
                self._read(task_id)
            if self._reads_left > 0:
                self._reads_left -= 1
                self._world.after(self._world.between(1, 20_000), read)

        read()

    def _read_all(self) -> None:
        for task_ids in self._checkers.acknowledged.values():
            for task_id in task_ids:
                self._read(task_id)

    def _read(self, task_id: TaskId) -> None:
        seen = self._checkers.end_seen(task_id)
        self._scheduler.read(
            lambda state: self._checkers.on_read(task_id, state, self._scheduler.history, seen)
        )

    def release_again(self) -> None:
        """The release of a known task may be lost."""
        self._release(tuple(task_id for ids in self._checkers.acknowledged.values() for task_id in ids))
        self._lost = True

    def _release(self, task_ids: tuple[TaskId, ...]) -> None:
        """Releases every held task at some time; retries until there is an answer."""
        waiting = set(task_ids)

        def ask() -> None:
            for task_id in sorted(waiting):
                release = ReleaseTasks(task_ids=(task_id,))
                self._scheduler.execute(release, partial(_done_with, waiting, task_id))
            if waiting:
                self._world.after(_ASK_AGAIN_MS, ask)

        self._world.after(self._world.between(0, 10_000), ask)

    def _told(self, command: SubmitTasks, first_id: TaskId, count: int) -> None:
        self._unanswered.discard(command.idempotency_key)
        task_ids = tuple(TaskId(first_id + number) for number in range(count))
        ((_, spec),) = command.entries
        self._checkers.on_acknowledged(command.idempotency_key, task_ids, spec.detail)
        self._read_now_and_then(task_ids)
        self._release(task_ids)
        if self._world.chance.random() < 0.15:
            cancel = CancelTasks(task_ids=task_ids[:1])
            self._world.after(
                self._world.between(0, 5_000), lambda: self._scheduler.execute(cancel, lambda _: None)
            )


def _done_with(waiting: set[TaskId], task_id: TaskId, result: object) -> None:
    if not isinstance(result, StorageFull):
        waiting.discard(task_id)
