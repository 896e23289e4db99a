"""Events in the form of the stream and of the histories of tasks and nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.core import events as e
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import own_facts
from dgpu.service.access.principal import Tenants
from dgpu.service.event_owners import CLUSTER, Owner, is_public, node_facts_for, parts_of
from dgpu.service.event_texts import SILENT, TEXTS, EventText, Facts, facts, named_tasks, shared_facts, shown
from dgpu.service.history.reader import PastEvent
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.wire.answers import TaskEvent, instant

_KINDS = {kind.__name__: kind for kind in TEXTS}


def past_task_event(event: PastEvent, task_id: TaskId) -> TaskEvent:
    """Converts an event of the history, which names events by their classes."""
    told = {"task_id": task_id, **event.body}
    return TaskEvent(index=event.index, at=instant(event.at), type=_text_of(event).name, facts=shown(told))


def past_node_facts(event: PastEvent) -> tuple[str, dict[str, Any]]:
    """The name and the facts of a node's event from the history. The caller knows the node."""
    text = _text_of(event)
    told = text.facts(event.body)
    told.pop("node", None)
    return text.name, told


def _text_of(event: PastEvent) -> EventText:
    return TEXTS[_KINDS[event.type]]


def event_stream_text(group: CommittedGroup) -> bytes:
    """The group as server-sent events, for readers of all tenants."""
    told = [
        _line(group.index, event, facts(event)) for event in group.events if not isinstance(event, SILENT)
    ]
    return _stream_text(group.index, told)


class ToldGroup:
    """A group as server-sent events. Each event is encoded when its first reader needs it, and once for all of them."""

    def __init__(self, group: CommittedGroup, state: ClusterState) -> None:
        self._group = group
        self._state = state
        self._all: bytes | None = None
        self._parts: dict[Owner, list[tuple[int, e.Event]]] | None = None  # by owner, with their order
        self._lines: dict[tuple[int, bool], bytes] = {}  # order, and whether it is the owner's form

    def text(self, tenants: Tenants) -> bytes:
        """For readers of these tenants. Raises OwnerUnknown."""
        if tenants is None:
            if self._all is None:
                self._all = event_stream_text(self._group)
            return self._all
        if self._parts is None:
            self._parts = self._by_owner()
        found = {order: self._line(order, part, own=False) for order, part in self._parts.get(CLUSTER, ())}
        for tenant_id in tenants:
            found |= {
                order: self._line(order, part, own=True) for order, part in self._parts.get(tenant_id, ())
            }
        return _stream_text(self._group.index, [found[order] for order in sorted(found)])

    def _by_owner(self) -> dict[Owner, list[tuple[int, e.Event]]]:
        parts: dict[Owner, list[tuple[int, e.Event]]] = {}
        shown = (event for event in self._group.events if not isinstance(event, SILENT))
        split = (part for event in shown for part in parts_of(event, self._state))
        for order, (owner, part) in enumerate(split):
            parts.setdefault(owner, []).append((order, part))
            if owner != CLUSTER and is_public(type(part)):
                parts.setdefault(CLUSTER, []).append((order, part))
        return parts

    def _line(self, order: int, part: e.Event, *, own: bool) -> bytes:
        found = self._lines.get((order, own))
        if found is None:
            told = own_facts(facts(part)) if own else node_facts_for((), facts(part))
            found = self._lines[order, own] = _line(self._group.index, part, told)
        return found


def _line(index: int, event: e.Event, told: Facts) -> bytes:
    kind = TEXTS[type(event)].name
    data = msgspec.json.encode({"index": index, "at": instant(event.at), "type": kind, **told})
    return b"event: %b\ndata: %b\n" % (kind.encode(), data)


def _stream_text(index: int, lines: list[bytes]) -> bytes:
    """Only the last event carries the index: a client that lost the rest gets all of it again."""
    return b"\n".join(lines) + b"id: %d\n\n" % index if lines else b""


def events_of_task(groups: list[CommittedGroup], task_id: TaskId) -> list[TaskEvent]:
    return [
        task_event(group.index, event, task_id)
        for group in groups
        for event in group.events
        if concerns(event, task_id)
    ]


def concerns(event: e.Event, task_id: TaskId) -> bool:
    if isinstance(event, SILENT):
        return False
    if isinstance(event, e.TasksSubmitted):
        return event.first_id <= task_id < event.first_id + sum(number for number, _ in event.entries)
    if task_id in named_tasks(event):
        return True
    return getattr(event, "task_id", None) == task_id


def task_event(index: int, event: e.Event, task_id: TaskId) -> TaskEvent:
    if isinstance(event, e.TasksSubmitted) or named_tasks(event):
        told: dict[str, Any] = {"task_id": task_name(task_id), **shared_facts(event)}
    else:
        told = facts(event)
    return TaskEvent(index=index, at=instant(event.at), type=TEXTS[type(event)].name, facts=told)
