"""Calls about tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Unpack

from dgpu.client.begin_times import with_begin_time
from dgpu.client.call import Call
from dgpu.client.fields import Filters, TaskFields
from dgpu.client.request import Request, api_path, encode, given, new_key
from dgpu.client.surroundings import surrounded
from dgpu.wire import answers, foresight_answers
from dgpu.wire.cluster_answers import EstimateList

PART_TASKS = 10_000
PART_BYTES = 8 << 20


class TaskCalls:
    clean_env: bool = False

    @Call
    def submit(
        self, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]
    ) -> Request[answers.Submitted]:
        """Submits one task. It gets the directory and the usual variables of this process, unless the client has
        `clean_env`. A repeat with the same key returns the first answer and submits nothing.
        """
        body, headers = encode(self._described(task)), new_key(idempotency_key)
        return Request("POST", api_path("tasks"), answers.Submitted, body=body, headers=headers)

    @Call
    def submit_copies(
        self, count: int, *, idempotency_key: str | None = None, **task: Unpack[TaskFields]
    ) -> Request[list[str]]:
        """`count` equal tasks, all or nothing; at most 10,000. Returns their ids."""
        body = encode({"task": self._described(task), "count": count})
        return _batch(body, idempotency_key).picking(lambda submitted: submitted.task_ids)

    @Call
    def submit_batch(
        self, tasks: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> Request[list[str]]:
        """Several tasks, all or nothing; at most 10,000 tasks and 8 MiB. Returns their ids. `after` of a task may name
        earlier ones of the list by their place: `{"entry": 0}`.
        """
        body = encode({"tasks": [self._described(task) for task in tasks]})
        return _batch(body, idempotency_key).picking(lambda submitted: submitted.task_ids)

    @Call
    def get(self, task_id: str | int) -> Request[answers.TaskAnswer]:
        """The current state of one task. With the id of an array, its first task and the progress in `array`; the
        task with index 3 of array 46 is `"46_3"`.
        """
        return Request("GET", api_path("tasks", task_id), answers.TaskAnswer)

    @Call
    def page(
        self, *, limit: int = 100, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> Request[answers.TaskPage]:
        """One page of tasks, newest first. Pass its `next_cursor` to get the next page."""
        return Request("GET", api_path("tasks", **filters, limit=limit, cursor=cursor), answers.TaskPage)

    @Call
    def cancel(self, *task_ids: str | int) -> Request[int]:
        """Cancels waiting and running tasks. The id of an array means all of its tasks. Returns how many were
        cancelled.
        """
        body = given(task_ids=[str(task_id) for task_id in task_ids])
        return _cancel(body)

    @Call
    def cancel_where(self, **filters: Unpack[Filters]) -> Request[int]:
        """Cancels all tasks that match. Returns how many were cancelled."""
        return _cancel(given(**filters))

    @Call
    def hold(self, task_id: str | int, *, array: bool = False) -> Request[answers.TaskAnswer]:
        """Holds a waiting task, or all waiting tasks of an array, until it is released."""
        return _order(task_id, "hold", array=array)

    @Call
    def release(self, task_id: str | int, *, array: bool = False) -> Request[answers.TaskAnswer]:
        """Lets a held task, or all held tasks of an array, start again."""
        return _order(task_id, "release", array=array)

    @Call
    def retry(
        self, task_id: str | int, *, failed: bool = False, idempotency_key: str | None = None
    ) -> Request[answers.Retried]:
        """Submits an ended task or array again, as a new one with the same environment. `failed`: only the failed
        tasks of an array, even while others still run.
        """
        path, headers = api_path("tasks", task_id, "retry"), new_key(idempotency_key)
        return Request("POST", path, answers.Retried, body=given(failed=failed or None), headers=headers)

    @Call
    def set_priority(
        self, task_id: str | int, priority: int | str, *, array: bool = False
    ) -> Request[answers.TaskAnswer]:
        """Changes the priority of a waiting task, or of all waiting tasks of an array."""
        return _order(task_id, "priority", priority=priority, array=array)

    @Call
    def why(self, task_id: str | int, at: str | None = None) -> Request[foresight_answers.Why]:
        """Why a task waits: its blockers, position, expected start, and changes that would start it sooner.

        `at`: why it waited then, for example "2h" (ago) or "2026-07-30T12:00:00Z".
        """
        return Request("GET", api_path("tasks", task_id, "why", at=at), foresight_answers.Why)

    @Call
    def whatif(self, change: Mapping[str, Any]) -> Request[foresight_answers.WhatifAnswer]:
        """The effect of a change, without making it: `{"submit": {...}}`, `{"quota": {"online_percent": 0.6}}`,
        `{"drain": node}`, `{"lose": node}` or `{"add_nodes": [{"gpus": 8, "model": "A100"}]}`.
        """
        return Request("POST", api_path("whatif"), foresight_answers.WhatifAnswer, body=encode(change))

    @Call
    def task_events(self, task_id: str | int) -> Request[Sequence[answers.TaskEvent]]:
        """Events of one task in order."""
        path = api_path("tasks", task_id, "events")
        return Request("GET", path, answers.TaskEvents).picking(lambda found: found.events)

    @Call
    def queue(self, *, limit: int = 100) -> Request[answers.QueuePage]:
        """Waiting tasks in the order in which they are tried."""
        return Request("GET", api_path("queue", limit=limit), answers.QueuePage)

    @Call
    def estimates(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        task_type: str | None = None,
        atoms: int | None = None,
    ) -> Request[EstimateList]:
        """Learned memory use of models and commands; with a model, type or atoms, also the estimate for such a task."""
        path = api_path("estimates", tenant=tenant, model=model, task_type=task_type, atoms=atoms)
        return Request("GET", path, EstimateList)

    def _described(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        filled = with_begin_time(task)
        return filled if self.clean_env else surrounded(filled)


def submit_parts(tasks: Iterable[Mapping[str, Any]]) -> Iterator[Request[answers.SubmittedMany]]:
    """One request per 10,000 tasks or 8 MiB. Each request is all or nothing; all of them together are not."""
    part: list[bytes] = []
    size = 0
    for task in tasks:
        encoded = encode(task)
        if part and (len(part) == PART_TASKS or size + len(encoded) + 1 > PART_BYTES - 64):
            yield _part(part)
            part, size = [], 0
        part.append(encoded)
        size += len(encoded) + 1
    if part:
        yield _part(part)


class LogsQuery(NamedTuple):
    """What of a task's output is wanted."""

    follow: bool = False
    tail: int | None = None
    head: int | None = None
    attempt: int | None = None
    rank: int | None = None
    since: str | datetime | None = None
    times: bool = False
    stream: Literal["stdout", "stderr"] | None = None
    grep: str | None = None


def logs_path(task_id: str | int, asked: LogsQuery, tail: int | None) -> str:
    """Lines are counted by the scheduler, unless a pattern chooses them here."""
    is_here = asked.grep is not None
    since = asked.since.astimezone(UTC).isoformat() if isinstance(asked.since, datetime) else asked.since
    return api_path(
        "tasks",
        task_id,
        "logs",
        follow="true" if asked.follow else None,
        tail=None if is_here else tail,
        head=None if is_here else asked.head,
        attempt=asked.attempt,
        rank=asked.rank,
        since=since,
        times="true" if asked.times else None,
        stream=asked.stream,
    )


def _part(tasks: list[bytes]) -> Request[answers.SubmittedMany]:
    return _batch(b'{"tasks":[' + b",".join(tasks) + b"]}", None)


def _batch(body: bytes, idempotency_key: str | None) -> Request[answers.SubmittedMany]:
    headers = new_key(idempotency_key)
    return Request("POST", api_path("tasks", "batch"), answers.SubmittedMany, body=body, headers=headers)


def _cancel(body: bytes) -> Request[int]:
    path = api_path("tasks", "cancel")
    return Request("POST", path, answers.Cancelled, body=body).picking(lambda done: done.cancelled)


def _order(
    task_id: str | int, order: str, *, array: bool, priority: int | str | None = None
) -> Request[answers.TaskAnswer]:
    body = given(priority=priority, array=array or None)
    return Request("POST", api_path("tasks", task_id, order), answers.TaskAnswer, body=body)
