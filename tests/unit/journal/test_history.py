"""The history: what the core forgot can still be listed, counted and explained; no secret gets in."""

import sqlite3

import pytest

from dgpu.core.apply.table import apply
from dgpu.core.events import NodeDraining
from dgpu.core.model.task import Pool, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter
from dgpu.service.sqlite_files import FileUnusable
from unit.journal.samples import SECRET, busy_cluster


def write(path, groups, **limits) -> HistoryWriter:
    writer = HistoryWriter(path, **limits)
    state = ClusterState()
    for index, group in enumerate(groups, start=1):
        for position, event in enumerate(group):
            apply(state, event)
            writer.note(event, state, index=index, position=position)
        if index % 10 == 0:
            writer.commit(index)
    writer.commit(len(groups))
    return writer


@pytest.fixture
def cluster():
    return busy_cluster(5, steps=200)


@pytest.fixture
def history(tmp_path, cluster):
    writer = write(tmp_path / "h.sqlite", cluster.groups)
    history = History(tmp_path / "h.sqlite")
    yield history
    history.close()
    writer.close()


def test_a_history_that_does_not_exist_yet_is_empty(tmp_path) -> None:
    history = History(tmp_path / "none.sqlite")
    assert history.task(1) is None
    assert history.list_tasks(TaskFilters()) == []
    assert history.count_tasks(TaskFilters()) == 0
    assert history.task_events(1) == []
    assert history.reach().index == 0


def test_every_task_is_in_it_and_only_the_forgotten_are_listed(history, cluster) -> None:
    everyone = cluster.state.next_task_id - 1
    assert len(history.list_tasks(TaskFilters(), live=True, limit=1000)) == everyone
    forgotten = history.count_tasks(TaskFilters())
    assert 0 < forgotten == everyone - len(cluster.state.tasks)
    listed = history.list_tasks(TaskFilters(), limit=1000)
    assert len(listed) == forgotten
    assert all(task.forgotten and task.id not in cluster.state.tasks for task in listed)


def test_live_tasks_stand_in_it_as_the_core_has_them(history, cluster) -> None:
    for task in cluster.state.tasks.values():
        past = history.task(task.id)
        assert (past.status, past.attempt, past.retries) == (task.status, task.attempt, task.retries)
        assert (past.node_id, past.gpu_ids) == (task.node_id, task.gpu_ids)
        assert (past.finished_at, past.exit_code, past.reason) == (
            task.finished_at,
            task.exit_code,
            task.reason,
        )
        assert past.tenant_id == "lab"
        assert past.labels == {"team": "a"}
        assert past.command[0] == "python"


def test_lists_are_paged_from_new_to_old(history) -> None:
    pages, before_id = [], None
    while page := history.list_tasks(TaskFilters(), before_id=before_id, limit=7):
        pages += [task.id for task in page]
        before_id = page[-1].id
    assert pages == sorted(pages, reverse=True)
    assert len(pages) == history.count_tasks(TaskFilters())


@pytest.mark.parametrize("status", [TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED])
def test_filters_choose_in_the_store(history, status: TaskStatus) -> None:
    chosen = history.list_tasks(TaskFilters(status=status), limit=1000)
    assert chosen
    assert {task.status for task in chosen} == {status}
    assert history.count_tasks(TaskFilters(status=status)) == len(chosen)
    assert history.count_tasks(
        TaskFilters(status=status, tenant_id="lab", pool=Pool.BATCH, priority=50)
    ) == len(chosen)
    for other in (TaskFilters(tenant_id="x"), TaskFilters(priority=80), TaskFilters(pool=Pool.ONLINE)):
        assert history.count_tasks(other) == 0


def test_filtered_lists_use_an_index(history) -> None:
    connection = history._connect()
    for column, value in (("status", "failed"), ("tenant", "lab"), ("priority", 50)):
        query = (
            f"SELECT * FROM tasks WHERE forgotten = 1 AND {column} = ? AND id < 9 ORDER BY id DESC LIMIT 5"
        )
        plan = " ".join(row["detail"] for row in connection.execute("EXPLAIN QUERY PLAN " + query, (value,)))
        assert f"tasks_by_{column}" in plan
        assert "TEMP B-TREE" not in plan


def test_the_events_of_a_task_come_in_order_from_its_submit_on(history, cluster) -> None:
    finished = history.list_tasks(TaskFilters(status=TaskStatus.SUCCESS), limit=1)[0]
    events = history.task_events(finished.id)
    kinds = [event.type for event in events]
    assert kinds[0] == "TasksSubmitted"
    assert kinds[-1] == "TaskFinished"
    assert kinds.count("TaskPlaced") == finished.attempt
    assert [event.index for event in events] == sorted(event.index for event in events)
    assert events[-1].body["exit_code"] == 0
    assert len(history.task_events(finished.id, limit=2)) == 2


def test_every_attempt_is_told_with_its_end(history) -> None:
    retried = [task for task in history.list_tasks(TaskFilters(), limit=1000) if task.attempt > 1]
    assert retried
    attempts = history.attempts(retried[0].id)
    assert [attempt.attempt for attempt in attempts] == list(range(1, retried[0].attempt + 1))
    assert all(attempt.ended_at >= attempt.placed_at > 0 for attempt in attempts)
    assert attempts[0].reason != ""


def node_events(history: History, node: str) -> list[sqlite3.Row]:
    return history.rows("SELECT * FROM node_events WHERE node = ? ORDER BY journal_index, position", (node,))


def test_events_of_nodes_are_kept(history) -> None:
    kinds = [row["type"] for row in node_events(history, "n2")]
    assert kinds[0] == "NodeRegistered"
    assert {"NodeDraining", "NodeResumed"} <= set(kinds)


def test_no_value_of_an_environment_gets_in(history, tmp_path) -> None:
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes()


def test_the_oldest_forgotten_leave_when_there_are_too_many(tmp_path, cluster) -> None:
    writer = write(tmp_path / "h.sqlite", cluster.groups, max_tasks=80)
    while writer.trim(0):
        pass
    history = History(tmp_path / "h.sqlite")
    kept = history.list_tasks(TaskFilters(), live=True, limit=1000)
    assert len(kept) <= 80 + 8
    assert {task.id for task in kept} >= set(cluster.state.tasks)
    oldest = min(task.id for task in kept if task.forgotten)
    assert oldest > 1
    assert history.task_events(1) == []
    assert history.attempts(1) == []


def test_a_commit_that_finds_no_room_can_be_made_again(tmp_path, cluster) -> None:
    writer = HistoryWriter(tmp_path / "h.sqlite")
    state = ClusterState()
    for position, event in enumerate(event for group in cluster.groups for event in group):
        apply(state, event)
        writer.note(event, state, index=1, position=position)
    writer._connection.execute("PRAGMA max_page_count = 20").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        writer.commit(1)
    assert writer.index == 0
    writer._connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    writer.commit(1)
    history = History(tmp_path / "h.sqlite")
    assert len(history.list_tasks(TaskFilters(), live=True, limit=1000)) == cluster.state.next_task_id - 1
    assert history.reach().index == 1


def test_a_file_that_is_no_history_is_not_used(tmp_path) -> None:
    (tmp_path / "h.sqlite").write_bytes(b"not a database at all, but long enough to look at" * 100)
    with pytest.raises(FileUnusable):
        HistoryWriter(tmp_path / "h.sqlite")


def test_a_history_of_another_version_is_not_used(tmp_path) -> None:
    connection = sqlite3.connect(tmp_path / "h.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FileUnusable, match="version 99"):
        HistoryWriter(tmp_path / "h.sqlite")


def test_a_reader_follows_a_history_that_was_made_again(tmp_path, cluster) -> None:
    path = tmp_path / "h.sqlite"
    write(path, cluster.groups[:1]).close()
    history = History(path)
    assert history.reach().index == 1
    write(tmp_path / "new.sqlite", cluster.groups).close()
    (tmp_path / "new.sqlite").replace(path)
    assert history.reach().index == len(cluster.groups)


def test_events_of_nodes_have_a_bound_of_their_own(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards change state while no task is submitted or trimmed."""
    monkeypatch.setattr("dgpu.service.history.writer._KEEP_NODE_EVENTS", 2_000)
    cluster = busy_cluster(steps=1)
    writer = write(tmp_path / "h.sqlite", cluster.groups)
    for index in range(100, 12_000, 100):
        for position in range(100):
            event = NodeDraining(at=index, node_id="n1", reason="")
            writer.note(event, cluster.state, index=index, position=position)
        writer.commit(index)
    while writer.trim(0):
        pass
    (left,) = writer._connection.execute("SELECT count(*) FROM node_events").fetchone()
    assert 2_000 - 100 <= left <= 3_000
    assert node_events(History(tmp_path / "h.sqlite"), "n1")[-1]["journal_index"] == 11_900
    writer.close()
    assert HistoryWriter(tmp_path / "h.sqlite")._kept_node_events == left


def test_a_page_of_ended_tasks_is_full_although_others_run(history, cluster) -> None:
    """The list of tasks ends at the first page that is not full."""
    everyone = history.list_tasks(TaskFilters(), live=True, limit=1000)
    ended = [task.id for task in everyone if task.status.is_final]
    assert 3 < len(ended) < len(everyone)
    newest_running = max(task.id for task in everyone if not task.status.is_final)
    limit = 1 + sum(task_id > newest_running for task_id in ended)
    page = history.forgotten_page(TaskFilters(), before_id=None, limit=limit, live=True)
    assert [task.id for task in page.tasks] == ended[:limit]
