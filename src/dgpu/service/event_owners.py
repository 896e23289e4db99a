"""Whose an event is, for readers of some tenants.

The owner of an event gets it with its facts, but without the names of other tasks in them. Other tenants get events
about nodes and GPUs without names of tasks and tenants, and nothing of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from dgpu.core import events as e
from dgpu.core.model.ids import TaskId
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import tenant_of, without_tasks
from dgpu.service.access.principal import Tenants
from dgpu.service.event_texts import Facts

CLUSTER: Final = ""  # owned by no tenant: all readers get it
ADMINS: Final = None  # only readers of all tenants get it
Owner: TypeAlias = str | None
Parts: TypeAlias = Iterable[tuple[Owner, e.Event]]

# Facts that name tasks, programs or tenants. Evidence against a GPU may, too.
_NAMES: Final = frozenset({"task", "tenant", "program", "evidence"})


class OwnerUnknown(Exception):  # noqa: N818 - the name states the failure
    """The task of an old event is out of memory."""


def parts_of(event: e.Event, state: ClusterState) -> Parts:
    """The event, split by owner. Raises OwnerUnknown."""
    return OWNERS[type(event)](event, state)


def is_public(kind: type[e.Event]) -> bool:
    """Whether tenants that do not own the event get it, too: a GPU that failed matters to all."""
    return kind is e.GpuBlamed or OWNERS[kind] is _cluster


def node_facts_for(tenants: Tenants, facts: Facts) -> Facts:
    """The facts of an event about a node or a GPU, for readers of these tenants."""
    if tenants is None or facts.get("tenant") in tenants:
        return facts
    told = {name: value for name, value in facts.items() if name not in _NAMES}
    for name in ("fault", "reason"):
        if name in told:
            told[name] = without_tasks(str(told[name]))
    return told


def _cluster(event: e.Event, _: ClusterState) -> Parts:
    return ((CLUSTER, event),)


def _admins(event: e.Event, _: ClusterState) -> Parts:
    return ((ADMINS, event),)


def _task(event: Any, state: ClusterState) -> Parts:
    return ((_tenant(state, event.task_id), event),)


def _tasks(event: Any, state: ClusterState) -> Parts:
    for tenant_id, task_ids in _by_tenant(event.task_ids, state, lambda task_id: task_id):
        yield tenant_id, replace(event, task_ids=task_ids)


def _priorities(event: e.PriorityChanged, state: ClusterState) -> Parts:
    for tenant_id, tasks in _by_tenant(event.tasks, state, lambda each: each[0]):
        yield tenant_id, replace(event, tasks=tasks)


def _by_tenant(
    items: tuple[Any, ...], state: ClusterState, task_id_of: Callable[[Any], TaskId]
) -> Iterator[tuple[Owner, tuple[Any, ...]]]:
    owners: dict[Owner, list[Any]] = {}
    for item in items:
        owners.setdefault(_tenant(state, task_id_of(item)), []).append(item)
    for tenant_id, own in owners.items():
        yield tenant_id, tuple(own)


def _submitted(event: e.TasksSubmitted, _: ClusterState) -> Parts:
    """A batch of an administrator may have tasks of several tenants."""
    first_id = event.first_id
    for tenant_id, run in groupby(event.entries, lambda entry: entry[1].shape.tenant_id):
        entries = tuple(run)
        yield tenant_id, replace(event, first_id=first_id, entries=entries)
        first_id = TaskId(first_id + sum(number for number, _ in entries))


def _tenant(state: ClusterState, task_id: TaskId) -> str:
    found = tenant_of(state, task_id)
    if found is None:
        raise OwnerUnknown
    return found


OWNERS: dict[type[e.Event], Callable[[Any, ClusterState], Parts]] = {
    e.EpochBegan: _cluster,
    e.TasksSubmitted: _submitted,
    e.TaskPlaced: _task,
    e.GangPlaced: _task,
    e.TaskStarted: _task,
    e.TaskFinished: _task,
    e.TaskRequeued: _task,
    e.TaskCancelRequested: _task,
    e.TaskStopRequested: _task,
    e.TasksCancelled: _tasks,
    e.CallsFailed: _tasks,
    e.WorkerChanged: _task,
    e.RankEnded: _task,
    e.TasksHeld: _tasks,
    e.TasksReleased: _tasks,
    e.PriorityChanged: _priorities,
    e.DemandChanged: _task,
    e.NodeRegistered: _cluster,
    e.InventoryChanged: _cluster,
    e.NodeLost: _cluster,
    e.NodeDraining: _cluster,
    e.NodeResumed: _cluster,
    e.NodeRemoved: _cluster,
    e.ObservationChanged: _cluster,
    e.GpuHealthChanged: _cluster,
    e.GpuBlamed: lambda event, _: ((event.blame.tenant_id, event),),
    e.QuotaChanged: _cluster,
    e.TenantSet: lambda event, _: ((event.tenant.id, event),),
    e.TenantRemoved: lambda event, _: ((event.tenant_id, event),),
    e.EstimateLearned: lambda event, _: ((event.estimate.tenant_id, event),),
    e.TokenCreated: _admins,
    e.TokenRevoked: _admins,
    e.SecretSet: _admins,  # a viewer of the tenant may not list its secrets
    e.SecretDeleted: _admins,
    e.Resealed: _admins,
    e.ServiceSet: lambda event, _: ((event.service.tenant_id, event),),
    e.ServiceDeleted: lambda event, _: ((event.service_id.partition("/")[0], event),),
    e.WallClockRead: _cluster,
}
