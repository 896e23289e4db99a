"""Run times by tenant and model or command. Forecasts expect the same of similar tasks.

The last runs of each kind are stored as numbers: a few suffice for a median and a 90th percentile without a sketch, and
a kind that has become slower shows after some runs.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from dgpu.core.model.task import Shape, Task, TaskStatus

MAX_KINDS: Final = 4_096  # a bound on memory; the least recently seen half is dropped
MAX_RUNS: Final = 15
MIN_RUNS: Final = 3  # minimum for reservations: fewer runs prove too little

_MAX_READ: Final = 4_096  # characters of a command
_NUMBER: Final = re.compile(r"\d+")


class RunTimes(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    recent_ms: tuple[int, ...]  # the last runs, oldest first
    updated_at: int = 0


class _Words(msgspec.Struct, frozen=True):
    """The part of a detail that counts here."""

    command: str | tuple[str, ...] = ""


_decode = msgspec.json.Decoder(_Words).decode


def kind_of(shape: Shape, detail: bytes) -> str:
    """Commands that differ only in numbers (a seed, a fold) are one kind. Another number of GPUs is another kind."""
    gpus = shape.gpus * shape.nodes
    if shape.model:
        return f"{shape.tenant_id}/model/{shape.model}/{gpus}"
    command = command_of(detail)
    words = command if isinstance(command, str) else "\0".join(command)
    known_by = hashlib.sha256(_NUMBER.sub("0", words[:_MAX_READ]).encode()).hexdigest()[:24]
    return f"{shape.tenant_id}/command/{known_by}/{gpus}"


def command_of(detail: bytes) -> str | tuple[str, ...]:
    return _decode(detail).command if detail else ""


def note_run(known: dict[str, RunTimes], shape: Shape, task: Task, at: int) -> None:
    """Stores the run time of an ended task. A cancelled task does not show how long it would have run, and the time of
    an allocation is chosen by its user.
    """
    if task.status not in _TELLING or not task.started_at or task.allocation:
        return
    kind = kind_of(shape, task.detail)
    before = known.get(kind)
    if before is None and len(known) >= MAX_KINDS:
        _make_room(known)
    recent = () if before is None else before.recent_ms[1 - MAX_RUNS :]
    known[kind] = RunTimes(recent_ms=(*recent, max(0, task.finished_at - task.started_at)), updated_at=at)


_TELLING: Final = {TaskStatus.SUCCESS, TaskStatus.FAILED}


def _make_room(known: dict[str, RunTimes]) -> None:
    """Drops half of the kinds at once, so that a stream of kinds that never return costs little for each."""
    by_age = sorted(known, key=lambda kind: (known[kind].updated_at, kind))
    for kind in by_age[: len(by_age) // 2]:
        del known[kind]


def quantile_ms(runs: RunTimes | None, percent: int, *, longer_than_ms: int) -> int | None:
    """The quantile of the runs that took longer than this run has taken already; None if none did."""
    left = sorted(each for each in runs.recent_ms if each > longer_than_ms) if runs else []
    return left[min(len(left) - 1, len(left) * percent // 100)] if left else None
