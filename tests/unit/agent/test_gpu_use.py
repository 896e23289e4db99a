"""How busy the GPUs of a run were."""

from __future__ import annotations

from dgpu.agent.gpu_use import GpuUse, UseTable, use_by_lease
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import GpusReleased, MemorySeen, Ordered, Report
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunEnd, RunOrder, RunsEnded, RunsListed, RunsStarted
from dgpu.core.model.task import Outcome


def test_mean_and_percentile_of_many_samples() -> None:
    table = UseTable()
    assert table.use() == GpuUse()
    for percent in [*range(100), 250, -1]:
        table.add(percent)
    assert table.use() == GpuUse(samples=102, percent=50, percent_p95=95)


def test_only_a_gpu_of_one_lease_tells_whose_use_it_is() -> None:
    samples = (
        Sample(gpu_id="a", utilization_percent=80),
        Sample(gpu_id="b", utilization_percent=40),
        Sample(gpu_id="c", utilization_percent=90),
        Sample(gpu_id="d", utilization_percent=0, untold=("utilization",)),
        Sample(gpu_id="e", utilization_percent=50, fault="gone"),
    )
    holders = {"a": (1,), "b": (1,), "c": (2, 3), "d": (4,), "e": (5,)}
    assert use_by_lease(samples, holders) == ((1, 60),)


def test_the_report_of_an_end_has_what_the_run_used() -> None:
    machine = Lifecycle()
    machine.on_input(RunsListed(runs=()), 0)
    machine.on_input(Ordered(starts=(RunOrder(lease_id=7, task_id=1, attempt=1, gpu_ids=("a",)),)), 0)
    machine.on_input(RunsStarted(started=((7, 1),)), 1)
    for percent in (20, 60):
        machine.on_input(MemorySeen(leases_mb=((7, 900),), use=((7, percent), (8, 99))), 2)
    end = RunEnd(lease_id=7, outcome=Outcome.EXITED, at_ms=9, cpu_ms=1_500, rss_mb=64)
    machine.on_input(RunsEnded(ended=(end,)), 9)
    outputs = machine.on_input(GpusReleased(released=((7, ()),)), 9)
    (report,) = [each for each in outputs if isinstance(each, Report)]
    (run,) = report.finished
    assert (run.gpu_use, run.peak_memory_mb) == (GpuUse(samples=2, percent=40, percent_p95=60), 900)
    assert (run.end.cpu_ms, run.end.rss_mb) == (1_500, 64)
