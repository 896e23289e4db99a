"""What a task used, in its answer, and the advice that follows from it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dgpu.core.commands import ReportFinished, ReportStarted
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.task import Outcome
from rest_world import RestWorld


@pytest.fixture
def world(tmp_path):
    with RestWorld(tmp_path) as world:
        world.add_node("n1", gpus=2)
        yield world


def end(world: RestWorld, usage: AttemptUsage | None, *, ran_ms: int = 600_000, exit_code: int = 0) -> None:
    for lease_id in world.read(lambda state: list(state.leases)):
        world.execute(ReportStarted(lease_id=lease_id, ago_ms=ran_ms))
        ending = ReportFinished(lease_id=lease_id, outcome=Outcome.EXITED, exit_code=exit_code, usage=usage)
        world.execute(ending)


def shift_start(world: RestWorld, ms: int) -> None:
    """Durations come from the journal's clock, which a test cannot wait for."""

    def earlier(state) -> None:
        for lease_id, lease in state.leases.items():
            state.leases[lease_id] = replace(lease, granted_at=lease.granted_at - ms)

    world.read(earlier)


def usage_of(world: RestWorld, task: str = "task-1") -> dict:
    return world.ask("GET", f"/api/v1/tasks/{task}").body["usage"]


def test_the_answer_has_use_times_and_advice(world) -> None:
    world.submit(gpu_memory_mb=24_576, cpus=2)
    shift_start(world, 700_000)
    of_gpu = AttemptUsage(gpu_samples=120, gpu_percent=90, gpu_percent_p95=99, gpu_peak_mb=6_000)
    end(world, replace(of_gpu, cpu_ms=600_000, rss_mb=700))
    usage = usage_of(world)
    assert (usage["gpu_percent"], usage["gpu_percent_p95"], usage["gpu_peak_mb"]) == (90, 99, 6_000)
    assert (usage["cpu_seconds"], usage["rss_peak_mb"]) == (600.0, 700)
    assert usage["run_seconds"] == pytest.approx(600, abs=60)
    assert usage["cpu_efficiency_percent"] == pytest.approx(50, abs=5)
    assert usage["advice"] == ["asked for 24 GB of GPU memory, used 5.9 GB: --gpu-mem 7680 is enough"]
    attempt = world.ask("GET", "/api/v1/tasks/task-1").body["attempts"][0]
    assert attempt["usage"]["gpu_percent"] == 90


def test_a_run_that_was_not_measured_has_no_usage(world) -> None:
    world.submit()
    end(world, None)
    assert usage_of(world) is None


@pytest.mark.parametrize(
    ("task", "usage", "exit_code", "advice"),
    [
        ({}, AttemptUsage(gpu_samples=9, gpu_percent=1, gpu_percent_p95=2), 0, "its GPUs were idle: -G 0"),
        ({}, AttemptUsage(gpu_samples=9, gpu_percent=20, gpu_percent_p95=60, gpu_peak_mb=2_000), 0,
         "its GPU was busy 20 % of the time: --shared --gpu-mem 2560 shares it"),
        ({"gpu_memory_mb": 24_576}, AttemptUsage(gpu_peak_mb=6_000), 1, ""),
        ({"gpu_memory_mb": 8_192}, AttemptUsage(gpu_peak_mb=6_000), 0, ""),
    ],
)  # fmt: skip
def test_advice_only_where_it_is_clear(world, task, usage, exit_code, advice) -> None:
    world.submit(**task)
    shift_start(world, 700_000)
    end(world, usage, exit_code=exit_code)
    assert " ".join(usage_of(world)["advice"]).startswith(advice)
    assert bool(usage_of(world)["advice"]) is bool(advice)
