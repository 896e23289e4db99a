"""A worker: a process that keeps a GPU and its loaded models between calls. It is a task that the scheduler submits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dgpu.core.model.ids import NO_TASK, TaskId
from dgpu.core.model.settings import Settings

MAX_MODELS: Final = 64  # that one worker may report
TAKEN_BACK: Final = "taken_back"  # why a call that has not begun leaves its worker
MAX_LOAD_TIMES: Final = 1_000  # models whose load time is known


class LoadedModel(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    name: str
    loading: bool = False  # a load that has begun counts as warm
    used_at: int = 0
    memory_mb: int = 0  # 0: unknown
    load_ms: int = 0  # how long its load took; 0: unknown


class Worker(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """Exists from the submit of the worker's task to its end."""

    task_id: TaskId
    app_id: str
    ready: bool = False
    models: tuple[LoadedModel, ...] = ()  # sorted by name
    idle_since: int = 0  # 0: not ready, leaving, or a call has a slot of it
    down: str = ""  # why its node gave it up; its process is being ended
    retires_for: TaskId = NO_TASK  # while this task waits, the worker takes no more calls


class LoadTime(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """How long workers took to load a model: an average that follows changes."""

    load_ms: int
    loads: int = 1
    seen_at: int = 0


def learned(known: dict[str, LoadTime], model: str, load_ms: int, at: int) -> None:
    """Notes one more load. The times of the models seen longest ago make room."""
    before = known.get(model)
    if before is not None:
        load_ms = before.load_ms + (load_ms - before.load_ms) // 4
        known[model] = LoadTime(load_ms=load_ms, loads=before.loads + 1, seen_at=at)
        return
    if len(known) >= MAX_LOAD_TIMES:
        for name in sorted(known, key=lambda each: (known[each].seen_at, each))[: MAX_LOAD_TIMES // 2]:
            del known[name]
    known[model] = LoadTime(load_ms=load_ms, seen_at=at)


def next_idle_at(workers: Iterable[Worker], settings: Settings) -> int | None:
    """When the worker that has been idle the longest has been idle for too long."""
    since = [worker.idle_since for worker in workers if worker.idle_since]
    return min(since) + settings.worker_idle_ms if since else None
