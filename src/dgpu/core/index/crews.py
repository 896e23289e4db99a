"""Crews: the workers of each app, and the calls that have slots of them. Derived from tasks and leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dgpu.core.model.ids import LeaseId, ShapeId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Shape, Task


class Crew:
    """`live`: calls that wait or run. A crew without calls and workers is dropped together with its app."""

    __slots__ = ("live", "workers")

    def __init__(self) -> None:
        self.live = 0
        self.workers: dict[TaskId, None] = {}

    def copy(self) -> Crew:
        twin = Crew()
        twin.live = self.live
        twin.workers = self.workers.copy()
        return twin

    def facts(self) -> tuple[int, list[TaskId]]:
        return self.live, sorted(self.workers)


class Crews:
    __slots__ = ("_again_at", "_slots", "by_app", "stirred")

    def __init__(self) -> None:
        self.by_app: dict[str, Crew] = {}
        self._slots: dict[LeaseId, dict[LeaseId, None]] = {}  # by the lease of the worker; none are empty
        self.stirred: dict[str, None] = {}  # apps whose calls may get a slot or a worker since the last pass
        self._again_at: dict[str, int] = {}  # time alone lets calls of these apps in

    def copy(self) -> Crews:
        twin = Crews()
        twin.by_app = {app_id: crew.copy() for app_id, crew in self.by_app.items()}
        twin._slots = {lease_id: calls.copy() for lease_id, calls in self._slots.items()}
        twin.stirred, twin._again_at = self.stirred.copy(), self._again_at.copy()
        return twin

    def rebuild(
        self,
        tasks: Mapping[TaskId, Task],
        shapes: Mapping[ShapeId, Shape],
        leases: Mapping[LeaseId, Lease],
    ) -> None:
        for task in tasks.values():
            app_id = task.worker_of or shapes[task.shape_id].app
            if not app_id or task.status.is_final:
                continue
            crew = self.open(app_id)
            self.stir(app_id)
            if task.worker_of:
                crew.workers[task.id] = None
            else:
                crew.live += 1
        for lease_id, lease in sorted(leases.items()):
            if lease.worker:
                self.take(lease.worker, lease_id)

    def facts(self) -> tuple[object, object]:
        """For comparison with crews derived from scratch."""
        slots = {lease_id: sorted(calls) for lease_id, calls in self._slots.items()}
        return {app_id: crew.facts() for app_id, crew in self.by_app.items()}, slots

    # queries

    def calls_of(self, worker: LeaseId) -> Iterable[LeaseId]:
        """The leases of the calls that have a slot of the worker, oldest first."""
        return self._slots.get(worker, ())

    def queued(self, worker: LeaseId) -> int:
        calls = self._slots.get(worker)
        return 0 if calls is None else len(calls)

    def oldest(self, worker: LeaseId) -> LeaseId | None:
        calls = self._slots.get(worker)
        return next(iter(calls)) if calls else None

    @property
    def any_queue(self) -> bool:
        """Whether a call waits at a worker for another one to end."""
        return any(len(calls) > 1 for calls in self._slots.values())

    @property
    def next_again_at(self) -> int | None:
        return min(self._again_at.values(), default=None)

    # changes

    def open(self, app_id: str) -> Crew:
        crew = self.by_app.get(app_id)
        if crew is None:
            crew = self.by_app[app_id] = Crew()
        return crew

    def close_unused(self, app_id: str) -> bool:
        """True: the app has no calls and no workers any more."""
        crew = self.by_app[app_id]
        if crew.live or crew.workers:
            return False
        del self.by_app[app_id]
        self.stirred.pop(app_id, None)
        self._again_at.pop(app_id, None)
        return True

    def take(self, worker: LeaseId, call: LeaseId) -> None:
        self._slots.setdefault(worker, {})[call] = None

    def leave(self, worker: LeaseId, call: LeaseId) -> bool:
        """True: the worker has no call any more."""
        calls = self._slots[worker]
        del calls[call]
        if calls:
            return False
        del self._slots[worker]
        return True

    def stir(self, app_id: str) -> None:
        self.stirred[app_id] = None

    def look_at(self, app_id: str, at: int) -> None:
        """Calls of the app are looked at again at this time at the latest."""
        self._again_at[app_id] = min(at, self._again_at.get(app_id, at))

    def advance(self, at: int) -> None:
        """Stirs the apps whose time has come."""
        for app_id in [app_id for app_id, again_at in self._again_at.items() if again_at <= at]:
            del self._again_at[app_id]
            self.stirred[app_id] = None
