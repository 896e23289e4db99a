"""Counters follow events; histograms say what was observed; the text survives any label."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from building import START, cluster, node, task
from dgpu.core.commands import ReportFinished, RunPass
from dgpu.core.execute import execute
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome, Pool, TaskStatus
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.metrics.meters import Histogram, Meters, level_of
from dgpu.service.metrics.text import Text


class Story:
    """A state and its meters: what is executed is told to them as a committed group."""

    def __init__(self) -> None:
        self.state = cluster(node("n1", gpus=1), task(gpus=1))
        self.meters = Meters(self.state)
        self.index = 0

    def do(self, command: object) -> None:
        events = execute(self.state, command)  # type: ignore[arg-type]
        assert isinstance(events, tuple)
        self.index += 1
        self.meters.on_group(CommittedGroup(index=self.index, events=events))


def run_pass(at: int) -> RunPass:
    return RunPass(at=at, limit=10, full=True)


def test_the_wait_of_a_task_is_from_its_submission_to_its_placement() -> None:
    story = Story()
    created_at = story.state.tasks[TaskId(1)].created_at
    story.do(run_pass(created_at + 90_000))
    wait = story.meters.wait[Pool.BATCH]
    assert (wait.count, wait.total) == (1, 90.0)
    assert story.meters.scheduled["normal"] == 1
    assert story.meters.gpu_tasks == {GpuId("n1-0"): 1} or sum(story.meters.gpu_tasks.values()) == 1


def test_a_second_attempt_waits_from_the_end_of_its_back_off() -> None:
    """The hours that the first attempt ran are no wait."""
    story = Story()
    story.do(run_pass(START + 10_000))
    lost = ReportFinished(lease_id=LeaseId(1), outcome=Outcome.NODE_FAULT, error="x", at=START + 9_000_000)
    story.do(lost)
    assert sum(story.meters.requeued.values()) == 1
    eligible_at = story.state.tasks[TaskId(1)].eligible_at
    before = story.meters.wait[Pool.BATCH].total
    story.do(run_pass(eligible_at + 5_000))
    assert story.meters.wait[Pool.BATCH].count == 2
    assert story.meters.wait[Pool.BATCH].total - before == pytest.approx(5.0)


def test_an_end_is_counted_by_its_status() -> None:
    story = Story()
    story.do(run_pass(START + 10_000))
    story.do(ReportFinished(lease_id=LeaseId(1), outcome=Outcome.EXITED, exit_code=0, at=START + 20_000))
    assert story.meters.finished == {
        TaskStatus.SUCCESS: 1,
        TaskStatus.FAILED: 0,
        TaskStatus.CANCELLED: 0,
    }


@pytest.mark.parametrize(
    ("priority", "level"),
    [
        (0, "low"),
        (10, "low"),
        (49, "low"),
        (50, "normal"),
        (79, "normal"),
        (80, "high"),
        (99, "high"),
        (100, "critical"),
    ],
)
def test_priorities_are_told_as_levels(priority: int, level: str) -> None:
    assert level_of(priority) == level


def test_a_histogram_counts_each_value_up_to_its_bound() -> None:
    known = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        known.observe(value)
    known.observe(3.0, times=2)
    assert known.counts == [2, 1, 2, 1]
    assert (known.count, known.total) == (6, 18.0)


def test_quantiles_lie_between_the_bounds() -> None:
    known = Histogram((1.0, 2.0))
    assert known.quantile(0.5) is None
    for _ in range(10):
        known.observe(1.5)
    assert known.quantile(0.5) == pytest.approx(1.5)
    known.observe(100.0, times=90)
    assert known.quantile(0.95) == 2.0


@pytest.mark.parametrize("value", ['"', "\\", "\n", '\\"\n', "}", "é😀", ""])
def test_a_label_comes_back_as_it_was(value: str) -> None:
    text = Text()
    text.by("name", "things", "gauge", "Things.", {value: 1})
    families = list(text_string_to_metric_families(text.encode().decode()))
    assert [family.name for family in families] == ["things", "dgpu_things"]
    assert [family.samples[0].labels for family in families] == [{"name": value}] * 2


def test_buckets_are_cumulative_and_end_with_all() -> None:
    known = Histogram((1.0, 2.5))
    for value in (0.5, 2.0, 7.0):
        known.observe(value)
    text = Text()
    text.histograms("pool", "wait_seconds", "Waits.", {"a": known})
    family, prefixed = text_string_to_metric_families(text.encode().decode())
    assert [s.value for s in prefixed.samples] == [s.value for s in family.samples]
    assert [(s.name, s.labels.get("le"), s.value) for s in family.samples] == [
        ("wait_seconds_bucket", "1", 1),
        ("wait_seconds_bucket", "2.5", 2),
        ("wait_seconds_bucket", "+Inf", 3),
        ("wait_seconds_sum", None, 9.5),
        ("wait_seconds_count", None, 3),
    ]
