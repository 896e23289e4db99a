"""A history that an earlier version wrote is completed in place: to make it again could reach less far back."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dgpu.core.commands import RunPass, SubmitTasks, Tick
from dgpu.core.events import DemandChanged
from dgpu.core.model.task import Pool, Shape
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import FollowerSettings
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import HISTORY_NAME, History, PastTask
from dgpu.service.history.rows import ADDED_COLUMNS
from dgpu.service.history.writer import HistoryWriter
from unit.journal.samples import Cluster, spec, write_journal


def follow(directory: Path, committed: int) -> dict[int, PastTask]:
    follower = Follower(directory, FollowerSettings(snapshot_interval_ms=0), lambda _: None)
    follower.commit_seen(committed)
    follower.finish(final_snapshot=True)
    follower.close()
    return read(directory)


def read(directory: Path) -> dict[int, PastTask]:
    history = History(directory / HISTORY_NAME)
    found = {task.id: task for task in history.list_tasks(TaskFilters(), live=True, limit=1_000)}
    history.close()
    return found


def as_an_earlier_version_left_it(directory: Path) -> None:
    connection = sqlite3.connect(directory / HISTORY_NAME)
    for name in ADDED_COLUMNS:
        connection.execute(f"ALTER TABLE tasks DROP COLUMN {name}")
    connection.execute("DELETE FROM meta WHERE name = 'complete_tasks'")
    connection.commit()
    connection.close()


def shaped(**fields) -> SubmitTasks:
    shape = Shape(tenant_id="lab", pool=Pool.BATCH, priority=50, gpus=1, **fields)
    return SubmitTasks(entries=((1, spec(shape=shape)),))


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    """A gang and a task with half a GPU are over and forgotten; others are in memory."""
    cluster = Cluster(3).begin()
    cluster.do(shaped(nodes=2), shaped(share_milli=500, gpu_memory_mb=1_024), RunPass())
    cluster.live_on(60)
    for _ in range(100):
        cluster.end(0)
        cluster.do(Tick(history_at=cluster.at))
    assert not {1, 2} & cluster.state.tasks.keys()
    assert cluster.state.tasks
    write_journal(tmp_path, cluster.groups)
    return cluster


def test_tasks_in_memory_get_the_columns_that_were_not_written(tmp_path, cluster) -> None:
    before = follow(tmp_path, len(cluster.groups))
    as_an_earlier_version_left_it(tmp_path)
    after = follow(tmp_path, len(cluster.groups))
    for task_id in cluster.state.tasks:
        assert after[task_id] == before[task_id]
        assert after[task_id].env_names == ("TOKEN",)


def test_forgotten_tasks_get_what_their_attempts_tell(tmp_path, cluster) -> None:
    before = follow(tmp_path, len(cluster.groups))
    as_an_earlier_version_left_it(tmp_path)
    after = follow(tmp_path, len(cluster.groups))
    assert (after[1].forgotten, after[1].node_ids) == (True, ("n1", "n2")) == (True, before[1].node_ids)
    assert (after[2].forgotten, after[2].share_milli) == (True, 500) == (True, before[2].share_milli)
    assert (before[1].env_names, after[1].env_names) == (("TOKEN",), ())


def test_a_history_that_was_not_completed_yet_can_be_read(tmp_path, cluster) -> None:
    """The scheduler may read it before the follower has opened it."""
    before = follow(tmp_path, len(cluster.groups))
    as_an_earlier_version_left_it(tmp_path)
    assert read(tmp_path).keys() == before.keys()


def test_a_demand_that_grew_is_kept(tmp_path) -> None:
    cluster = Cluster().begin()
    cluster.do(shaped(gpu_memory_mb=1_024))
    task_id = max(cluster.state.tasks)
    cluster.groups.append((DemandChanged(at=cluster.at, task_id=task_id, gpu_memory_mb=4_096),))
    write_journal(tmp_path, cluster.groups)
    assert follow(tmp_path, len(cluster.groups))[task_id].gpu_memory_mb == 4_096


def test_a_new_history_has_nothing_to_complete(tmp_path, cluster) -> None:
    follow(tmp_path, len(cluster.groups))
    writer = HistoryWriter(tmp_path / HISTORY_NAME)
    changes = writer._connection.total_changes
    writer.complete(cluster.state)
    assert writer._connection.total_changes == changes
    writer.close()
