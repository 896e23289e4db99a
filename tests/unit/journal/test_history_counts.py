"""A page costs the same however many tasks the history holds, and its total is exact."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest

from dgpu.core.model.task import Pool, TaskStatus
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter

FEW, MANY = 2_000, 40_000
STEPS_AT_ONCE = 50


def fill(path: Path, number: int) -> None:
    """Finished tasks that the core forgot; one in 500 is of a kind that is rare, and all of those are old."""
    writer = HistoryWriter(path)
    writer.close()
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO tasks (id, name, tenant, pool, priority, gpus, gpu_models, gpu_memory_mb, cpus_milli, ram_mb, "
            "timeout_ms, max_retries, restart, allocation, command, workdir, labels, created_at, submitted_index, "
            "status, gpu_ids, attempt, retries, started_at, finished_at, exit_code, reason, error) "
            "VALUES (?, '', ?, ?, ?, 1, '[]', 0, 0, 0, 0, 0, 'never', 0, '\"x\"', "
            "'', '{}', 1, 1, ?, '[]', 1, 0, 1, 1, 0, '', '')",
            (_row(task_id, number) for task_id in range(1, number + 1)),
        )
        connection.execute("UPDATE tasks SET forgotten = 1")
        connection.execute("INSERT INTO meta VALUES ('index', 1)")
    connection.close()


def _row(task_id: int, number: int) -> tuple[int, str, str, int, str]:
    if task_id <= number // 500:
        return task_id, "lab", "online", 80, "failed"
    return task_id, ("lab", "team")[task_id % 2], "batch", (10, 50)[task_id // 2 % 2], "success"


def steps_of_a_page(path: Path, filters: TaskFilters) -> int:
    """Instructions of SQLite's machine: the same on any computer, at any load."""
    history = History(path)
    counted = itertools.count()
    connection = history._connect()
    assert connection is not None
    connection.set_progress_handler(lambda: next(counted) < 0, STEPS_AT_ONCE)
    page = history.forgotten_page(filters, before_id=None, limit=2)
    connection.set_progress_handler(None, 0)
    assert len(page.tasks) == 2
    history.close()
    return next(counted) * STEPS_AT_ONCE


FILTERS = [
    TaskFilters(),
    TaskFilters(status=TaskStatus.FAILED),
    TaskFilters(tenant_id="lab"),
    TaskFilters(priority=80),
    TaskFilters(pool=Pool.ONLINE),
    TaskFilters(pool=Pool.BATCH, tenant_id="lab"),
    TaskFilters(status=TaskStatus.FAILED, tenant_id="lab"),
    TaskFilters(status=TaskStatus.FAILED, tenant_id="lab", pool=Pool.ONLINE, priority=80),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("counts")
    fill(folder / "few.sqlite", FEW)
    fill(folder / "many.sqlite", MANY)
    return folder / "few.sqlite", folder / "many.sqlite"


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_page_takes_the_same_work_with_twenty_times_the_tasks(files, filters: TaskFilters) -> None:
    few, many = (steps_of_a_page(path, filters) for path in files)
    assert many <= few + 10 * STEPS_AT_ONCE


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_counters_say_what_a_count_says(files, filters: TaskFilters) -> None:
    history = History(files[1])
    rows = history.rows("SELECT * FROM tasks WHERE forgotten = 1 ORDER BY id", ())
    wanted = {
        "status": filters.status,
        "tenant": filters.tenant_id,
        "pool": filters.pool,
        "priority": filters.priority,
    }
    taken = [row["id"] for row in rows if all(value in {None, row[name]} for name, value in wanted.items())]
    assert history.count_tasks(filters) == len(taken) > 0
    listed = history.list_tasks(filters, before_id=MANY // 2, limit=100)
    assert [task.id for task in listed] == [each for each in reversed(taken) if each < MANY // 2][:100]
    history.close()


def test_removed_tasks_are_no_longer_counted(tmp_path) -> None:
    fill(tmp_path / "h.sqlite", FEW)
    writer = HistoryWriter(tmp_path / "h.sqlite", max_tasks=500)
    assert writer.trim(0) == FEW - 500
    history = History(tmp_path / "h.sqlite")
    assert history.count_tasks(TaskFilters()) == 500
    assert history.count_tasks(TaskFilters(status=TaskStatus.FAILED)) == 0
    history.close()
    writer.close()


def test_a_history_of_an_earlier_version_is_counted_once(tmp_path) -> None:
    fill(tmp_path / "h.sqlite", FEW)
    with sqlite3.connect(tmp_path / "h.sqlite") as connection:
        connection.executescript(
            "DROP TABLE task_counts; DROP INDEX tasks_by_kind; DROP TRIGGER task_forgotten; DROP TRIGGER task_removed;"
        )
    connection.close()
    history = History(tmp_path / "h.sqlite")
    failed = TaskFilters(status=TaskStatus.FAILED, pool=Pool.ONLINE)
    assert (history.count_tasks(failed), len(history.list_tasks(failed))) == (4, 4)
    HistoryWriter(tmp_path / "h.sqlite").close()
    assert history.count_tasks(failed) == 4
    assert history.count_tasks(TaskFilters()) == FEW
    history.close()


@pytest.mark.parametrize("filters", [TaskFilters(), TaskFilters(tenant_id="lab", pool=Pool.BATCH)], ids=str)
def test_a_page_may_ask_only_for_tasks_above_an_id(files, filters: TaskFilters) -> None:
    """Where the memory fills a page, older tasks cannot be on it; only their number matters."""
    history = History(files[0])
    page = history.forgotten_page(filters, before_id=FEW, above_id=FEW - 6, limit=100)
    every = [task.id for task in history.list_tasks(filters, before_id=FEW, limit=100)]
    assert [task.id for task in page.tasks] == [each for each in every if each > FEW - 6] != []
    assert page.total == history.count_tasks(filters)
    history.close()
