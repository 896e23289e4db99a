"""Loaded models of this worker: at most `max_models`, least recently used evicted first, unused ones after a while."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from dgpu.worker import gpu_memory
from dgpu.worker.frames import ModelState
from dgpu.worker.registry import DeclaredModel


class _Loaded:
    __slots__ = ("declared", "load_ms", "loading", "memory_mb", "used_at", "value")

    def __init__(self, declared: DeclaredModel, used_at: float) -> None:
        self.declared = declared
        self.value: Any = None
        self.loading = True
        self.memory_mb = declared.memory_mb
        self.load_ms = 0
        self.used_at = used_at


class ModelCache:
    def __init__(
        self,
        *,
        max_models: int,
        ttl_seconds: float,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_models = max(1, max_models)
        self._ttl_seconds = ttl_seconds
        self._on_change = on_change
        self._clock = clock
        self._loaded: dict[str, _Loaded] = {}  # least recently used first

    def get(self, declared: DeclaredModel) -> Any:
        """The model, loaded now if need be. Out of GPU memory: the other models are evicted and it is tried again."""
        entry = self._loaded.pop(declared.name, None)
        if entry is not None and entry.declared is declared:
            self._loaded[declared.name] = entry
            entry.used_at = self._clock()
            return entry.value
        if entry is not None:  # declared anew since, by a module that was loaded again
            self._loaded[declared.name] = entry
            self.evict(declared.name)
        while len(self._loaded) >= self._max_models:
            self.evict(next(iter(self._loaded)))
        try:
            return self._load(declared)
        except Exception as error:
            if not (self._loaded and gpu_memory.is_out_of_memory(error)):
                raise
            traceback.clear_frames(error.__traceback__)
        self.evict_all()
        return self._load(declared)

    def evict(self, name: str) -> None:
        """Runs the model's `unload` and gives its memory back. An error of `unload` is printed, no more."""
        entry = self._loaded.pop(name, None)
        if entry is None:
            return
        hook = entry.declared.on_unload
        if hook is not None:
            try:
                hook(entry.value)
            except Exception:  # noqa: BLE001 - code of the user
                print(f"dgpu: unload of model {name!r} failed:", file=sys.stderr)  # noqa: T201
                traceback.print_exc()
        entry.value = None
        gpu_memory.give_back()
        self._on_change()

    def evict_all(self) -> None:
        for name in list(self._loaded):
            self.evict(name)

    def evict_unused(self) -> None:
        now = self._clock()
        for name, entry in list(self._loaded.items()):
            if now - entry.used_at >= self._ttl_seconds:
                self.evict(name)

    def seconds_to_next_eviction(self) -> float | None:
        if not self._loaded:
            return None
        oldest = min(entry.used_at for entry in self._loaded.values())
        return max(0.0, oldest + self._ttl_seconds - self._clock())

    def states(self) -> tuple[ModelState, ...]:
        now = self._clock()
        # A copy: the thread that answers an agent asks while a model is being loaded.
        return tuple(
            ModelState(
                name=name,
                loading=entry.loading,
                memory_mb=entry.memory_mb,
                load_ms=entry.load_ms,
                used_ago_ms=max(0, int((now - entry.used_at) * 1000)),
            )
            for name, entry in self._loaded.copy().items()
        )

    def _load(self, declared: DeclaredModel) -> Any:
        begin = self._clock()
        entry = self._loaded[declared.name] = _Loaded(declared, begin)
        self._on_change()
        before = gpu_memory.allocated_mb()
        try:
            entry.value = declared()
        except BaseException:
            del self._loaded[declared.name]
            gpu_memory.give_back()
            self._on_change()
            raise
        entry.used_at = self._clock()
        entry.load_ms = int((entry.used_at - begin) * 1000)
        entry.memory_mb = max(0, gpu_memory.allocated_mb() - before) or declared.memory_mb
        entry.loading = False
        self._on_change()
        return entry.value
