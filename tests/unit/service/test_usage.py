"""GPU-hours, waiting times and bars: what is within the range counts, and nothing else. Times are minutes of a day."""

from __future__ import annotations

import msgspec
import pytest

from dgpu.core import commands
from dgpu.core.execute import execute
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, Shape, TaskDetail, TaskSpec
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.history import usage as reports
from dgpu.service.history.reader import History
from dgpu.service.history.writer import HistoryWriter
from unit.journal.samples import register

# No quota in the way of anybody, no time limit.
SETTINGS = Settings(
    default_timeout_ms=0, max_timeout_ms=0, quota=Quota(mode=QuotaMode.BORROW), memory_margin_mb=0
)
NINE = 1_767_258_000_000
MINUTE = 60_000


def minute(number: float) -> int:
    return NINE + round(number * MINUTE)


class Day:
    """Commands at minutes after nine, decided by the core and written to a history."""

    def __init__(self, folder):
        self.writer = HistoryWriter(folder / "history.sqlite")
        self.history = History(folder / "history.sqlite")
        self._state = ClusterState()
        self._index = 0
        self.do(0, commands.BeginEpoch(settings=SETTINGS), register("n1", 4), register("n2", 2))

    def do(self, at: float, *wanted: commands.Command) -> None:
        for command in wanted:
            decision = execute(self._state, msgspec.structs.replace(command, at=minute(at)))
            assert not isinstance(decision, Rejection), decision
            self._index += 1
            for position, event in enumerate(decision):
                self.writer.note(event, self._state, index=self._index, position=position)
        self.writer.commit(self._index)

    def submit(
        self, at: float, *, tenant="lab", pool=Pool.BATCH, gpus=1, user="ann", share=1_000, **shape
    ) -> None:
        detail = msgspec.json.encode(TaskDetail(name="t", command="x", labels={"user": user} if user else {}))
        made = Shape(
            tenant_id=tenant,
            pool=pool,
            priority=50,
            gpus=gpus,
            share_milli=share,
            gpu_memory_mb=1_024 if share < 1_000 else 0,
            **shape,
        )
        self.do(
            at,
            commands.SubmitTasks(entries=((1, TaskSpec(shape=made, detail=detail)),)),
            commands.RunPass(),
        )

    def end(self, at: float, task: int, exit_code: int = 0, usage: AttemptUsage | None = None) -> None:
        leases = [lease.id for lease in self._state.leases.values() if lease.task_id == task]
        for lease_id in leases:
            report = commands.ReportFinished(
                lease_id=lease_id, outcome=Outcome.EXITED, exit_code=exit_code, usage=usage
            )
            self.do(at, commands.ReportStarted(lease_id=lease_id), report)
        self.do(at, commands.RunPass())

    def usage(self, since: float, until: float, *by: str, now: float | None = None):
        return reports.usage(
            self.history,
            by or ("tenant",),
            since=minute(since),
            until=minute(until),
            now=minute(until if now is None else now),
        )


@pytest.fixture
def day(tmp_path):
    made = Day(tmp_path)
    yield made
    made.history.close()
    made.writer.close()


def hours(minutes: float) -> float:
    return pytest.approx(minutes / 60, abs=1e-4)


def test_a_task_across_an_edge_counts_with_its_part(day):
    day.submit(10, gpus=2)
    day.end(70, 1)
    assert day.usage(0, 100).total.gpu_hours == hours(2 * 60)
    assert day.usage(40, 100).total.gpu_hours == hours(2 * 30)
    assert day.usage(0, 40, now=100).total.gpu_hours == hours(2 * 30)
    assert day.usage(30, 50, now=100).total.gpu_hours == hours(2 * 20)
    assert day.usage(71, 100).rows == []
    assert day.usage(0, 10, now=100).rows == []


def test_ranges_that_meet_add_up_to_the_whole(day):
    day.submit(10, gpus=2)
    day.submit(15)
    day.end(33.3, 1)
    parts = [day.usage(edge, edge + 7, now=60).total.gpu_hours for edge in range(0, 56, 7)]
    assert sum(parts) == pytest.approx(day.usage(0, 56, now=60).total.gpu_hours, abs=1e-3)


def test_what_still_runs_counts_up_to_now_and_is_told(day):
    day.submit(10)
    report = day.usage(0, 40)
    assert (report.total.gpu_hours, report.total.running, report.total.tasks) == (hours(30), 1, 1)
    assert day.usage(0, 20, now=40).total.running == 1
    assert day.usage(0, 20, now=40).total.gpu_hours == hours(10)


def test_a_shared_gpu_counts_with_its_share(day):
    day.submit(0, share=250)
    day.end(60, 1)
    assert day.usage(0, 60).total.gpu_hours == hours(15)


def test_a_gang_counts_all_of_its_gpus_and_is_one_task(day):
    day.submit(0, gpus=2, nodes=2)
    day.end(30, 1)
    total = day.usage(0, 60).total
    assert (total.gpu_hours, total.tasks, total.attempts, total.started) == (hours(4 * 30), 1, 1, 1)
    assert total.wait_mean_seconds == 0.0


def test_rows_are_told_apart_by_tenant_pool_and_user(day):
    day.submit(0, tenant="lab", user="ann")
    day.submit(0, tenant="lab", user="bob", gpus=2)
    day.submit(0, tenant="web", pool=Pool.ONLINE, user="")
    for task in (1, 2, 3):
        day.end(60, task)
    assert [(row.tenant, row.gpu_hours) for row in day.usage(0, 60).rows] == [("lab", 3.0), ("web", 1.0)]
    assert [(row.pool, row.gpu_hours) for row in day.usage(0, 60, "pool").rows] == [
        ("batch", 3.0),
        ("online", 1.0),
    ]
    both = day.usage(0, 60, "tenant", "user").rows
    assert [(row.tenant, row.user, row.gpu_hours) for row in both] == [
        ("lab", "bob", 2.0),
        ("lab", "ann", 1.0),
        ("web", "", 1.0),
    ]


def test_each_task_has_a_row_with_what_it_used(day):
    day.submit(0, tenant="lab", user="ann", gpus=4)
    day.submit(10, tenant="web", user="bob", gpus=3)
    day.end(60, 1, 1, AttemptUsage(gpu_samples=10, gpu_percent=40, gpu_peak_mb=900))
    day.end(90, 2, 0, AttemptUsage(gpu_samples=30, gpu_percent=80, gpu_peak_mb=700))
    times = {"since": minute(0), "until": minute(100), "now": minute(100)}
    told = reports.usage_by_task(day.history, **times)
    shown = [(row.task, row.status, row.user, row.gpu_percent, row.gpu_peak_mb) for row in told.rows]
    assert shown == [("task-1", "failed", "ann", 40, 900), ("task-2", "success", "bob", 80, 700)]
    assert [row.gpu_hours for row in told.rows] == [hours(4 * 60), hours(3 * 30)]
    assert [(row.wait_mean_seconds, row.run_seconds) for row in told.rows] == [(0, 3600), (50 * 60, 1800)]
    assert (told.total.tasks, told.total.gpu_percent, told.total.gpu_peak_mb) == (2, 70, 900)
    (own,) = reports.usage_by_task(day.history, **times, tenants=("web",)).rows
    assert own.task == "task-2"


def test_waiting_counts_where_a_task_started(day):
    day.submit(0, gpus=4)
    day.submit(1, gpus=4)  # waits for the first
    day.end(11, 1)
    day.submit(12, gpus=4)  # still waits
    report = day.usage(10, 20)
    assert (report.total.started, report.total.wait_mean_seconds, report.total.wait_max_seconds) == (
        1,
        600.0,
        600.0,
    )
    assert report.total.waiting == 1
    assert day.usage(0, 10, now=20).total.wait_mean_seconds == 0.0
    waits = reports.waits(day.history, since=minute(0), until=minute(20), step_ms=10 * MINUTE)
    assert [(each.bucket, each.started, each.mean_ms) for each in waits] == [(0, 1, 0.0), (1, 1, 600_000.0)]


def test_ends_count_in_the_range_they_fall_into(day):
    day.submit(0)
    day.submit(0)
    day.end(10, 1)
    day.end(20, 2, exit_code=3)
    first, second = day.usage(5, 15, now=30).total, day.usage(15, 25, now=30).total
    assert (first.succeeded, first.failed) == (1, 0)
    assert (second.succeeded, second.failed) == (0, 1)


def test_attempts_that_were_requeued_count_each(day):
    day.submit(0)
    day.do(
        10,
        commands.LoseNode(node_id="n1", reason="silence"),
        commands.LoseNode(node_id="n2", reason="silence"),
    )
    day.do(
        20,
        commands.ReleaseNode(node_id="n1", reason="gone"),
        commands.ReleaseNode(node_id="n2", reason="gone"),
    )
    day.do(30, msgspec.structs.replace(register("n1"), boot_id="b2"), commands.RunPass())
    total = day.usage(0, 40).total
    assert (total.gpu_hours, total.tasks, total.attempts, total.started) == (hours(20 + 10), 1, 2, 1)
    bars = reports.timeline(
        day.history, since=minute(0), until=minute(40), now=minute(40), nodes=(), limit=10
    ).bars
    assert [(bar.attempt, bar.status, bar.end is None) for bar in bars] == [
        (1, "requeued", False),
        (2, "running", True),
    ]


def timeline(day, since, until, *, limit=100, nodes=()):
    return reports.timeline(
        day.history, since=minute(since), until=minute(until), now=minute(until), nodes=nodes, limit=limit
    )


def test_of_too_many_bars_the_longest_stay(day):
    for task, length in enumerate((5, 20, 10), start=1):
        day.submit(0)
        day.end(length, task)
        # the next is submitted at the same minute: the cluster has room
    found = timeline(day, 0, 30, limit=2)
    assert (found.total, found.truncated) == (3, True)
    assert {bar.task_id for bar in found.bars} == {"task-2", "task-3"}
    assert timeline(day, 0, 30).truncated is False


def test_a_timeline_shows_what_overlaps_on_the_nodes_asked_for(day):
    day.submit(0, gpus=4)  # fits n1 only
    day.end(10, 1)
    day.submit(20, gpus=4)
    assert [bar.task_id for bar in timeline(day, 5, 15).bars] == ["task-1"]
    assert [bar.task_id for bar in timeline(day, 5, 25).bars] == ["task-1", "task-2"]
    assert timeline(day, 10, 20).bars == []
    assert timeline(day, 0, 30, nodes=("n2",)).bars == []
    (bar, _) = timeline(day, 0, 30, nodes=("n1",)).bars
    assert (bar.node, len(bar.gpu_ids), bar.status) == ("n1", 4, "success")


def test_a_history_of_an_earlier_version_is_completed_and_not_made_again(tmp_path):
    import sqlite3

    day = Day(tmp_path)
    day.submit(0)
    day.end(60, 1)
    day.writer.close()
    with sqlite3.connect(tmp_path / "history.sqlite") as connection:
        connection.executescript("DROP INDEX attempts_by_end; ALTER TABLE attempts DROP COLUMN share_milli;")
    HistoryWriter(tmp_path / "history.sqlite").close()
    history = History(tmp_path / "history.sqlite")
    total = reports.usage(history, ("tenant",), since=minute(0), until=minute(60), now=minute(60)).total
    assert total.gpu_hours == hours(60)
    assert history.reach().from_index == 0
