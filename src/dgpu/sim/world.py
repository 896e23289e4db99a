"""Virtual time: one heap of events, one random source. Equal seeds give equal worlds."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

MAX_EVENTS = 2_000_000


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)  # noqa: S311 - reproducible on purpose
        self.now = 0  # true milliseconds; hosts have their own clocks
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now + ms, action)

    def at(self, ms: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(ms, self.now), self._count, action))

    def between(self, least: int, most: int) -> int:
        return self.chance.randint(least, most)

    def run_until(self, ms: int, is_over: Callable[[], bool] | None = None) -> bool:
        """False: the time limit came first."""
        while self._heap and self._heap[0][0] <= ms:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            if self._count > MAX_EVENTS:
                raise AssertionError(f"seed {self.seed}: the world does not come to rest")
            if is_over is not None and is_over():
                return True
        self.now = ms
        return False
