"""A process that answers why a task waited at a time in the past, and ends.

A second state would cost the scheduler memory, and the replay would hold up the follower.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.sooner import sooner
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalError
from dgpu.journal.moments import Moment, TooEarly, moment_at
from dgpu.service.access.anonymous import task_told_to, told_to
from dgpu.service.access.foresight import changes_told_to
from dgpu.service.looking_back.words import LookBack, Seen
from dgpu.service.views.explained import change_answers, why_answer
from dgpu.service.views.tasks import gpu_names, task_answer
from dgpu.wire.answers import TaskAnswer, instant
from dgpu.wire.foresight_answers import Why
from dgpu.wire.wall_time import SHOWN

_NICENESS = 10
_ATTEMPTS = 3  # the follower may pack or remove a file that is being read


def main(arguments: list[str]) -> int:
    """`python -m dgpu.service.looking_back DIRECTORY QUESTION`, the question as JSON."""
    os.nice(_NICENESS)
    seen = look_back(Path(arguments[0]), msgspec.json.decode(arguments[1], type=LookBack))
    sys.stdout.buffer.write(msgspec.json.encode(seen))
    return 0


def look_back(directory: Path, question: LookBack) -> Seen:
    error = ""
    for _ in range(_ATTEMPTS):
        try:
            moment = moment_at(directory, question.at, upto_index=question.upto_index)
        except TooEarly as early:
            return Seen(earliest_at=early.earliest_at)
        except (JournalError, OSError) as failed:
            error = str(failed)
        else:
            return Seen(why=_why(moment, question))
    return Seen(error=error)


def _why(moment: Moment, question: LookBack) -> Why | None:
    """None: the task did not exist yet, or had ended and left the memory."""
    state, task_id = moment.state, question.task_id
    at = max(question.at, state.last_at)
    SHOWN.follow(state.wall)
    found = explain(state, task_id, at)
    if isinstance(found, Rejection):
        return None
    found = told_to(question.tenants, state, found)
    asks = found.status is TaskStatus.PENDING and found.blockers
    changes = changes_told_to(question.tenants, state, sooner(state, task_id, at)) if asks else []
    return replace(
        why_answer(found),
        sooner=change_answers(changes),
        looked_ahead=False,
        at=instant(at),
        journal_index=moment.index,
        task=task_told_to(question.tenants, _task(state, task_id)),
    )


def _task(state: ClusterState, task_id: TaskId) -> TaskAnswer:
    task = state.tasks[task_id]
    names = gpu_names(state, task.gpu_ids)
    return task_answer(task, state.shapes[task.shape_id], names, awaited=state.after.get(task_id))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
