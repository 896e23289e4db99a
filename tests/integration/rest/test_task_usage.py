"""What a task used, in its answer, and the advice that follows from it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dgpu.core.commands import ReportFinished, ReportStarted
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import NodeId
from dgpu.core.model.task import Outcome
from dgpu.wire.proto import agent_pb2 as pb
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
    text = "asked for 24 GB of GPU memory, used 5.9 GB: --gpu-mem 7680 is enough"
    facts = {"asked_mb": 24_576, "used_mb": 6_000, "enough_mb": 7_680}
    assert usage["advice"] == [{"code": "gpu_memory", "detail": text, "facts": facts}]
    assert usage["so_far"] is False
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
    assert " ".join(each["detail"] for each in usage_of(world)["advice"]).startswith(advice)
    assert bool(usage_of(world)["advice"]) is bool(advice)


def test_a_running_task_shows_what_it_uses_so_far(world) -> None:
    world.submit()
    lease_id = world.read(lambda state: next(iter(state.leases)))
    world.execute(ReportStarted(lease_id=lease_id, ago_ms=0))
    assert usage_of(world) is None, "its node has no stream, so nothing is known"

    def answer(message: pb.FromSchedulerFiles) -> None:
        usage = pb.RunUsage(gpu_samples=1, gpu_percent=40, gpu_percent_p95=40, cpu_ms=1_500, rss_mb=300)
        assert message.request.measure.lease_id == lease_id
        told = pb.FileAnswer(request_id=message.request.request_id, usage=usage)
        world.files.on_answer(link, told)

    link = world.files.attach(NodeId("n1"), answer)
    usage = usage_of(world)
    assert (usage["so_far"], usage["gpu_percent"], usage["cpu_seconds"]) == (True, 40, 1.5)
    assert usage["run_seconds"] is not None
    assert usage["advice"] == []
    world.execute(ReportFinished(lease_id=lease_id, outcome=Outcome.EXITED, exit_code=0, usage=None))
    assert usage_of(world) is None, "values of a running task are not those of its end"


def test_advice_on_memory_tells_how_much_earlier_a_new_task_would_start(world) -> None:
    """The large GPUs are busy for an hour, and a small one is free."""
    world.submit(gpu_memory_mb=24_576)
    shift_start(world, 700_000)
    end(world, AttemptUsage(gpu_samples=120, gpu_percent=90, gpu_percent_p95=99, gpu_peak_mb=6_000))
    world.submit(gpu_count=2, timeout_seconds=3_600, gpu_memory_mb=24_576)
    world.add_node("n2", gpus=1, memory_mb=16_384)
    advice = usage_of(world)["advice"][0]
    assert 0 < advice["facts"]["earlier_seconds"] <= 3_600
    assert advice["detail"].endswith(f"would start {advice['facts']['earlier_seconds'] // 60} min earlier")
