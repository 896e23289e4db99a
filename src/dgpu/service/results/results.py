"""Results of function calls, wherever they are: the newest in memory, all others in their file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dgpu.core.model.ids import TaskId
from dgpu.service.loop.runtime import Runtime
from dgpu.service.results.file import RESULTS_NAME, ResultReader, StoredResult
from dgpu.service.results.recent import RecentResults


class Results:
    def __init__(self, runtime: Runtime) -> None:
        self.recent = RecentResults()
        self._file: ResultReader | None = None  # None: only the newest results are known
        runtime.subscribe(self.recent.on_group)

    def read_from(self, data_dir: Path) -> None:
        self._file = ResultReader(data_dir / RESULTS_NAME)

    async def find(self, task_ids: list[TaskId]) -> dict[TaskId, StoredResult]:
        found: dict[TaskId, StoredResult] = {}
        for task_id in task_ids:
            if (recent := self.recent.find(task_id)) is not None:
                found[task_id] = recent
        left = [task_id for task_id in task_ids if task_id not in found]
        if left and self._file is not None:
            found.update(await asyncio.to_thread(self._file.find, left))
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
