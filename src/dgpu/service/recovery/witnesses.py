"""Records about the journal outside the journal, and the check that the journal agrees with them.

Each witness is written after its facts are durable in the journal. So a witness may be behind the journal, but never
ahead of it. A witness that is ahead proves that acknowledged groups are missing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dgpu.core.model.ids import MAX_EPOCH, task_name
from dgpu.core.state import ClusterState
from dgpu.journal.errors import ForeignState, JournalError, LostTail
from dgpu.journal.mark import MARK_NAME, read_mark
from dgpu.service.history.lost import Lost, history_end, lost_of
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.recovery.cluster_file import CLUSTER_NAME, KnownCluster, read_known

_SHOWN = 20  # ids in a message
ALONE = (
    "Restore the missing part of the directory if a copy of it exists. To continue without it: "
    "`dgpu scheduler --accept-lost-tail`, or `dgpu up --accept-lost-tail`. Nothing was changed."
)
SHARED = (
    "The engine does not have them either. It may have been restored from an older copy, or be another one: check its "
    "addresses and the prefix. To continue without these groups, move the directory away and start with an empty one."
)


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    index: int = 0
    epoch: int = 0
    last_task: int = 0
    cluster_id: str = ""


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    witnesses: tuple[Witness, ...]
    known: KnownCluster

    @property
    def index(self) -> int:
        return max(witness.index for witness in self.witnesses)

    @property
    def epoch(self) -> int:
        return max(witness.epoch for witness in self.witnesses)

    @property
    def last_task(self) -> int:
        return max(witness.last_task for witness in self.witnesses)

    @property
    def cluster_id(self) -> str:
        return next((witness.cluster_id for witness in self.witnesses if witness.cluster_id), "")


def look_outside(directory: Path) -> Outside:
    known = read_known(directory)
    mark = read_mark(directory)
    history = history_end(directory / HISTORY_NAME)
    return Outside(
        known=known,
        witnesses=(
            Witness(file=CLUSTER_NAME, epoch=known.epoch, cluster_id=known.cluster_id),
            Witness(
                file=HISTORY_NAME,
                index=history.index,
                epoch=history.epoch,
                last_task=history.last_task,
                cluster_id=history.cluster_id,
            ),
            *(
                [Witness(file=MARK_NAME, index=mark.index, epoch=mark.epoch, last_task=mark.last_task)]
                if mark is not None
                else []
            ),
        ),
    )


def check_cluster(directory: Path, state: ClusterState, outside: Outside) -> None:
    """Raises ForeignState."""
    for witness in outside.witnesses:
        if witness.cluster_id and state.cluster_id and witness.cluster_id != state.cluster_id:
            raise ForeignState(
                f"{directory / witness.file} belongs to cluster {witness.cluster_id}, the journal to "
                f"{state.cluster_id}: the directory contains files of two clusters. "
                f"Move away the files that do not belong here"
            )


def check_state(
    directory: Path, state: ClusterState, index: int, outside: Outside, advice: str = ALONE
) -> None:
    """Compares the recovered state with all witnesses. Raises LostTail or ForeignState."""
    check_cluster(directory, state, outside)
    for witness in outside.witnesses:
        if witness.epoch > state.epoch or witness.last_task >= state.next_task_id:
            raise explained(directory, index, outside, state=state, advice=advice)
    if max(state.epoch, outside.epoch) >= MAX_EPOCH:
        raise JournalError(f"epoch {MAX_EPOCH} is the last one: this cluster cannot start another")


def explained(
    directory: Path,
    index: int,
    outside: Outside,
    *,
    state: ClusterState | None = None,
    at_least: int = 0,
    advice: str = ALONE,
) -> LostTail:
    """Names the lost groups and tasks as far as they are known, and the next step. `state`: the readable part."""
    next_task_id = 0 if state is None else state.next_task_id
    lost = lost_of(directory / HISTORY_NAME, after_index=index, next_task_id=next_task_id)
    if 0 < next_task_id <= outside.last_task:
        # Ids are assigned in order, so these are lost even if the history has not seen them.
        ids = range(next_task_id, outside.last_task + 1)
        lost = msgspec.structs.replace(lost, tasks=tuple(ids[:_SHOWN]), total=len(ids))
    ahead = [
        f"{witness.file} records group {witness.index} of epoch {witness.epoch}"
        if witness.index
        else f"{witness.file} records epoch {witness.epoch}"
        for witness in outside.witnesses
        if witness.index > index or (state is not None and witness.epoch > state.epoch)
    ]
    known = ", ".join(ahead) or f"a snapshot or archive records group {at_least}"
    lines = [
        (
            f"the journal in {directory} ends with group {index}, but {known}: its "
            f"latest groups, which were acknowledged, are missing."
        ),
        *_names(lost),
        advice,
    ]
    return LostTail(str(directory), 0, "\n".join(lines), index=index, known=max(outside.index, at_least))


def _names(lost: Lost) -> list[str]:
    lines = []
    if lost.total:
        lines.append(f"Lost tasks ({lost.total}): {_ids(lost.tasks, lost.total)}.")
    if lost.changed_total:
        lines.append(
            f"Tasks that go back to an earlier state and may run again ({lost.changed_total}): "
            f"{_ids(lost.changed, lost.changed_total)}."
        )
    return lines or [
        "No task is known to be lost; the latest groups may have held some that the history had not seen."
    ]


def _ids(ids: tuple[int, ...], total: int) -> str:
    shown = ", ".join(task_name(each) for each in ids[:_SHOWN])  # type: ignore[arg-type]
    return shown if total <= _SHOWN else f"{shown} and {total - _SHOWN} more"
