"""Why a task waits: every current blocker, with numbers."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.foresight.barriers import barriers_of, conditions_of
from dgpu.core.foresight.blockers import Blocker, Nearest, blocker, nearest_node, plural
from dgpu.core.foresight.reserved import Reserved, in_words, reserved_of, room_blockers
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.node import Node
from dgpu.core.model.task import Task, TaskStatus
from dgpu.core.rejections import UnknownTask
from dgpu.core.rules.order import position, queue
from dgpu.core.state import ClusterState

MAX_AHEAD: Final = 100


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    status: TaskStatus
    summary: str  # one sentence for people
    position: int | None = None  # 1: first in the queue; None: the task does not wait
    ahead: tuple[TaskId, ...] = ()  # in order, the first `MAX_AHEAD`
    ahead_total: int = 0
    blockers: tuple[Blocker, ...] = ()
    nearest: Nearest | None = None  # the node that lacks the least
    reservation: Reserved | None = None


def explain(state: ClusterState, task_id: TaskId, at: int) -> Explanation | UnknownTask:
    task = state.tasks.get(task_id)
    return UnknownTask(task_id=task_id) if task is None else explain_task(state, task, at)


def explain_task(state: ClusterState, task: Task, at: int) -> Explanation:
    if task.status is TaskStatus.PENDING:
        return _waiting(state, task, at)
    if task.status is TaskStatus.RUNNING:
        return _running(state, task)
    return Explanation(task_id=task.id, status=task.status, summary=_ended(task))


def _waiting(state: ClusterState, task: Task, at: int) -> Explanation:
    state.queue.advance(at)  # a task whose back-off has ended needs quota like any other
    place = position(state, task.id) or 1
    ahead = place - 1
    line = state.queue.line_of(task)
    blockers = [
        *conditions_of(state, task),
        *barriers_of(state, line, task.id, at),
        *room_blockers(state, line, task.id, at),
    ]
    if state.no_pass_before > at:
        blockers.append(loss_wait(state, at))
    if task.eligible_at > at:
        blockers.append(back_off(task, at))
    if ahead:
        detail = f"{plural(ahead, 'task')} of the same or a higher priority {'come' if ahead > 1 else 'comes'} first"
        blockers.append(blocker("tasks_ahead", detail, ahead=ahead))
    if blockers:
        summary = f"{task_name(task.id)} waits: {'; '.join(each.detail for each in blockers)}"
    else:
        summary = f"{task_name(task.id)} is placed in the next pass"
    reservation = reserved_of(state, task.id)
    if reservation is not None and blockers:
        summary += f"; {in_words(reservation, at)}"
    return Explanation(
        task_id=task.id,
        status=task.status,
        summary=summary,
        position=place,
        ahead=tuple(queue(state, limit=min(ahead, MAX_AHEAD))),
        ahead_total=ahead,
        blockers=tuple(blockers),
        nearest=nearest_node(state, line.demand) if blockers and not line.shape.app else None,
        reservation=reservation,
    )


def loss_wait(state: ClusterState, at: int) -> Blocker:
    """The wait after an accepted loss of the end of the journal."""
    left_ms = state.no_pass_before - at
    detail = (
        "the end of the journal was lost, and nodes may still run tasks that only it knew:"
        f" no task starts for {-(-left_ms // 1_000)} s"
    )
    return blocker("journal_loss", detail, left_ms=left_ms)


def back_off(task: Task, at: int) -> Blocker:
    left_ms = task.eligible_at - at
    if task.begins_ms and not task.attempt:
        return blocker(
            "begin_time",
            f"it begins in {_in_words(left_ms)} at the earliest, as requested",
            eligible_at=task.eligible_at,
            left_ms=left_ms,
            begins_ms=task.begins_ms,
        )
    last = f" after: {task.error}" if task.error else ""
    return blocker(
        "back_off",
        f"it is tried again in {-(-left_ms // 1_000)} s{last}",
        eligible_at=task.eligible_at,
        left_ms=left_ms,
        error=task.error,
        retries=task.retries,
        max_retries=task.max_retries,
    )


def _in_words(ms: int) -> str:
    minutes, seconds = divmod(-(-ms // 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes >= 10 else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _running(state: ClusterState, task: Task) -> Explanation:
    leases = [state.leases[lease_id] for lease_id in state.leases_of(task)]
    # In a gang, the first rank that is not running normally.
    lease = min(
        leases,
        key=lambda each: (
            not state.nodes[each.node_id].offline_since,
            not state.nodes[each.node_id].unconfirmed_since,
            each.started,
            each.rank,
        ),
    )
    node = state.nodes[lease.node_id]
    name = task_name(task.id)
    if node.offline_since or node.unconfirmed_since:
        return _out_of_touch(task, node)
    if task.cancelling:
        summary = f"{name} is being stopped on node {node.id}"
    elif not lease.started:
        summary = f"{name} is starting on node {node.id}"
        if node.draining and node.drain_reason:
            summary += f", which takes no tasks now ({node.drain_reason})"
    elif task.node_ids:
        summary = f"{name} runs on nodes {', '.join(task.node_ids)}, attempt {task.attempt}"
    else:
        summary = f"{name} runs on node {node.id}, attempt {task.attempt}"
    return Explanation(task_id=task.id, status=task.status, summary=summary)


def _out_of_touch(task: Task, node: Node) -> Explanation:
    if node.offline_since:
        code, since = "node_unreachable", node.offline_since
        detail = f"node {node.id} is unreachable; the task keeps its lease until its end is certain"
    else:
        code, since = "node_unconfirmed", node.unconfirmed_since
        detail = f"node {node.id} has not contacted this scheduler since it started; the task keeps its lease"
    return Explanation(
        task_id=task.id,
        status=task.status,
        summary=f"{task_name(task.id)}: {detail}",
        blockers=(blocker(code, detail, node=node.id, since=since),),
    )


def _ended(task: Task) -> str:
    because = f": {task.error or task.reason}" if task.error or task.reason else ""
    return f"{task_name(task.id)} is over ({task.status}){because}"
