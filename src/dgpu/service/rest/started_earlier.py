"""How much earlier a task would start with less GPU memory, by two forecasts: one as it is, one with the advice.

The past cannot be repeated, so both forecasts submit the task now. Costs are bounded: an answer holds for a minute, and
a forecast that is not there at once is left out.
"""

from __future__ import annotations

import datetime as dt

import msgspec
from msgspec.structs import replace

from dgpu.core.model.ids import NO_TASK, TaskId
from dgpu.core.model.task import Task, TaskSpec, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.follower.link import FollowerAway
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.foresee import ask_ahead
from dgpu.service.views.task_usage import GPU_MEMORY, told_earlier
from dgpu.wire.answers import TaskAnswer
from dgpu.wire.foresight_answers import WhatifAnswer
from dgpu.wire.questions import Submitting
from dgpu.wire.requests import entry_of

_PATIENCE_S = 0.3  # a page of a task answers without it rather than late
_HOLDS_MS = 60_000
_MAX_KEPT = 256
_MIN_S = 60.0  # a smaller difference says nothing: forecasts are medians

_whatif = msgspec.json.Decoder(WhatifAnswer).decode


async def with_earlier_start(rest: Backend, task_id: TaskId, told: TaskAnswer) -> TaskAnswer:
    """With the time in its advice on GPU memory, if both starts are known."""
    usage = told.usage
    advice = [] if usage is None else usage.advice
    found = next((each for each in advice if each.code == GPU_MEMORY), None)
    if usage is None or found is None:
        return told
    seconds = await _kept_s(rest, task_id, found.facts["enough_mb"])
    if seconds is None:
        return told
    new = [told_earlier(each, seconds) if each is found else each for each in advice]
    return replace(told, usage=replace(usage, advice=new))


async def _kept_s(rest: Backend, task_id: TaskId, enough_mb: int) -> float | None:
    now, kept = rest.runtime.now_ms(), rest.earlier_starts
    at, seconds = kept.get((task_id, enough_mb), (None, None))
    if at is None or now - at >= _HOLDS_MS:
        seconds = await _earlier_s(rest, task_id, enough_mb)
        kept[task_id, enough_mb] = (now, seconds)
        while len(kept) > _MAX_KEPT:
            kept.popitem(last=False)
    return seconds


async def _earlier_s(rest: Backend, task_id: TaskId, enough_mb: int) -> float | None:
    """None: no difference, or not known."""

    def look(state: ClusterState) -> TaskSpec | None:
        task = state.tasks.get(task_id)
        return spec_of(state, task) if task is not None and task.status is TaskStatus.SUCCESS else None

    spec = await rest.runtime.read(look)
    if spec is None:
        return None
    spec = replace(spec, array=(), array_limit=0)
    less = replace(spec, shape=replace(spec.shape, gpu_memory_mb=enough_mb))
    try:
        late, early = await _wait_s(rest, spec), await _wait_s(rest, less)
    except FollowerAway:
        return None
    if late is None or early is None or late - early < _MIN_S:
        return None
    return late - early


async def _wait_s(rest: Backend, spec: TaskSpec) -> float | None:
    """From now until the expected start of a new task like this."""
    told = _whatif(await ask_ahead(rest, Submitting(entries=(entry_of(spec),)), _PATIENCE_S))
    if told.rejected is not None:
        return None
    if not told.waits:
        return 0.0
    at = told.waits[0].expected_start
    if at is None:
        return None
    return (dt.datetime.fromisoformat(at) - dt.datetime.fromisoformat(told.at)).total_seconds()


def spec_of(state: ClusterState, task: Task) -> TaskSpec:
    """The task as a new submit of its own."""
    shape = state.shapes[task.shape_id]
    return TaskSpec(
        shape=replace(shape, array_id=NO_TASK, array_limit=0),
        detail=task.detail,
        timeout_ms=task.timeout_ms,
        max_retries=task.max_retries,
        restart=task.restart,
        allocation=task.allocation,
        array=((task.array_index, task.array_index, 1),) if task.array_id else (),
        array_limit=shape.array_limit,
    )
