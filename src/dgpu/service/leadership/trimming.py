"""Keeps the engine small: the leader stores a snapshot in it, then deletes groups that the snapshot covers.

The groups since the snapshot before it stay: a scheduler that has just fetched that one, or is a little behind, reads
on instead of fetching again. An engine that is nearly full keeps none of them.

The snapshot is the one that the follower process has written to the local directory. In the engine, a majority of its
members has it, so the groups before it exist nowhere else only after two machines can replace them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Protocol

import structlog

from dgpu.journal.bundle import SnapshotBundle
from dgpu.journal.engine import PART_BYTES, Engine, EngineError, EngineHealth, FenceLost, Term
from dgpu.journal.errors import SnapshotDamaged
from dgpu.journal.snapshot import SNAPSHOT_NAME, snapshot_index
from dgpu.service.options import TrimRules

_log = structlog.get_logger("dgpu.leadership")


class Copied(Protocol):
    """The journal, as far as this module needs it."""

    @property
    def last_index(self) -> int: ...

    @property
    def copied_bytes(self) -> int:
        """Of all groups since it was opened."""
        ...


class Trimming:
    def __init__(
        self,
        engine: Engine,
        journal: Copied,
        term: Term,
        directory: Path,
        *,
        snapshot_soon: Callable[[], None],
        health: Callable[[], EngineHealth | None],
        rules: TrimRules | None = None,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._term = term
        self._directory = directory
        self._snapshot_soon = snapshot_soon
        self._health = health
        self._rules = rules or TrimRules()
        self._covered: int | None = None  # by the snapshot in the engine; None: not read yet
        self._bytes_at_snapshot = 0
        self._snapshot_bytes = 0
        self._is_tidy = False  # nothing below the floor is left

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="trimming")
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._rules.look_s)
            with contextlib.suppress(FenceLost):  # this life ends anyway
                await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Blocks. Errors are reported and the next look tries again. Raises FenceLost."""
        try:
            if self._covered is None:
                stored = self._engine.snapshot()
                self._covered = 0 if stored is None else stored.index
            if not self._is_tidy:  # an earlier leader may have moved the floor without deleting
                self._engine.delete_covered(self._term)
                self._is_tidy = True
            if self._is_due(self._covered):
                self._trim(self._covered)
        except FenceLost:
            raise
        except (EngineError, SnapshotDamaged, OSError) as error:
            _log.warning("engine_not_trimmed", reason=str(error))

    def _is_due(self, covered: int) -> bool:
        rules, groups = self._rules, self._journal.last_index - covered
        size = self._journal.copied_bytes - self._bytes_at_snapshot
        if groups >= rules.max_groups or size >= max(
            rules.max_bytes, rules.times_snapshot * self._snapshot_bytes
        ):
            return True
        return self._is_nearly_full() and groups >= rules.few_groups and size >= self._snapshot_bytes

    def _is_nearly_full(self) -> bool:
        health = self._health()
        return health is not None and health.share >= self._rules.nearly_full

    def _trim(self, covered_before: int) -> None:
        """A snapshot that covers less than half of the groups is not worth storing: a newer one is asked for."""
        covered = snapshot_index(self._directory / SNAPSHOT_NAME)
        if covered < (covered_before + 1 + self._journal.last_index) // 2:
            self._snapshot_soon()
            return
        size_before = self._journal.copied_bytes
        bundle = SnapshotBundle(self._directory)
        try:
            sizes: list[int] = []

            def counted() -> Iterator[bytes]:
                for part in bundle.parts(PART_BYTES):
                    sizes.append(len(part))
                    yield part

            kept_from = (bundle.index if self._is_nearly_full() else covered_before) + 1
            self._engine.store_snapshot(
                self._term, bundle.index, bundle.epoch, counted(), kept_from=kept_from
            )
        finally:
            bundle.close()
        self._covered, self._is_tidy = bundle.index, False
        self._bytes_at_snapshot, self._snapshot_bytes = size_before, sum(sizes)
        _log.info("engine_snapshot_stored", index=bundle.index, bytes=self._snapshot_bytes)
        self._engine.delete_covered(self._term)
        self._is_tidy = True
