"""What workers add to the samples of GPUs."""

from __future__ import annotations

from dgpu.agent.probe.probe import Sample
from dgpu.agent.workers.calls import WorkerModel
from dgpu.agent.workers.records import NodeWorker
from dgpu.agent.workers.samples import busy_gpus, with_models, with_simulated_memory
from dgpu.core.model.ids import GpuId, LeaseId

GPU, OTHER = GpuId("GPU-a"), GpuId("GPU-b")
SAMPLES = (Sample(gpu_id=GPU, memory_used_mb=9_000, memory_foreign_mb=10), Sample(gpu_id=OTHER))


def worker() -> NodeWorker:
    found = NodeWorker(LeaseId(7), gpu_ids=(GPU,), silence_ms=30_000)
    found.models = {
        "m": WorkerModel(name="m", memory_mb=500),
        "n": WorkerModel(name="n", memory_mb=300, loading=True),
    }
    return found


def test_memory_of_models_is_used_by_the_lease_of_their_worker() -> None:
    holders, workers = {GPU: (LeaseId(7),)}, {LeaseId(7): worker()}
    first, second = with_simulated_memory(SAMPLES, holders, workers)
    assert (first.memory_used_mb, first.leases_mb) == (810, ((LeaseId(7), 800),))
    assert second == SAMPLES[1]


def test_gpus_that_tasks_hold_too_keep_their_numbers() -> None:
    holders, workers = {GPU: (LeaseId(7), LeaseId(8))}, {LeaseId(7): worker()}
    assert with_simulated_memory(SAMPLES, holders, workers) == SAMPLES


def test_an_idle_worker_does_not_use_its_gpu() -> None:
    workers = {LeaseId(7): worker()}
    assert busy_gpus({GPU: (LeaseId(7),), OTHER: (LeaseId(8),)}, workers) == {OTHER}


def test_loaded_models_and_faults_are_in_the_samples() -> None:
    first, second = with_models(SAMPLES, [worker()], {OTHER: "silent"})
    assert (first.loaded_models, first.fault) == (("m",), "")
    assert (second.loaded_models, second.fault, second.fault_cause) == ((), "silent", "fault")
