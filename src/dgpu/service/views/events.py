"""Events in the form of the stream and of the histories of tasks and nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.core import events as e
from dgpu.core.model.ids import TaskId, task_name
from dgpu.service.event_texts import SILENT, TEXTS, EventText, facts, named_tasks, shared_facts, shown
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
    """The group as server-sent events. Only the last one carries the index: a client that lost the rest gets all of it
    again.
    """
    shown = [event for event in group.events if not isinstance(event, SILENT)]
    if not shown:
        return b""
    parts = []
    for event in shown:
        kind = TEXTS[type(event)].name
        told = {"index": group.index, "at": instant(event.at), "type": kind, **facts(event)}
        parts.append(b"event: %b\ndata: %b\n" % (kind.encode(), msgspec.json.encode(told)))
    return b"\n".join(parts) + b"id: %d\n\n" % group.index


def events_of_task(groups: list[CommittedGroup], task_id: TaskId) -> list[TaskEvent]:
    return [
        task_event(group.index, event, task_id)
        for group in groups
        for event in group.events
        if concerns(event, task_id)
    ]


def concerns(event: e.Event, task_id: TaskId) -> bool:
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
