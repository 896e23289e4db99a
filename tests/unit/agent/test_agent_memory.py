"""Memory as the agent sees it: who ran out of it, who holds how much, who outgrew what it shares."""

from __future__ import annotations

import os

import pytest

from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import GpusReleased, MemorySeen, Ordered, ProgramFault, StopRuns
from dgpu.agent.memory import with_leases
from dgpu.agent.oom import out_of_memory
from dgpu.agent.probe.foreign import own_mb
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import KnownRun, RunEnd, RunOrder, RunsEnded, RunsListed, RunsStarted, StopOrder
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome

L1, L2 = LeaseId(1), LeaseId(2)
GPU = GpuId("GPU-a")


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: out of memory",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "DGPU_OUT_OF_MEMORY",
    ],
)
def test_programs_say_that_memory_ran_out(line: str) -> None:
    assert out_of_memory(f"step 1\n{line}\n  at f.py\n".encode()) == line


@pytest.mark.parametrize("line", ["Killed: out of memory", "loss 0.1", "the cat is out of memory foam", ""])
def test_other_words_do_not(line: str) -> None:
    assert not out_of_memory(line.encode())


def test_only_the_last_lines_count() -> None:
    """A program that survived it and failed much later failed of something else."""
    assert not out_of_memory(b"CUDA out of memory\n" + b"going on\n" * 100)


def lifecycle(*, kill: bool) -> Lifecycle:
    machine = Lifecycle(grace_ms=7_000)
    machine.on_input(RunsListed(runs=()), 0)
    order = RunOrder(
        lease_id=L1,
        task_id=TaskId(1),
        attempt=1,
        gpu_ids=(GPU,),
        gpu_memory_mb=4_096,
        share_milli=250,
        kill_outgrown=kill,
    )
    machine.on_input(Ordered(starts=(order,)), 0)
    machine.on_input(RunsStarted(started=((L1, 5),)), 5)
    return machine


def seen(memory_mb: int) -> MemorySeen:
    return MemorySeen(leases_mb=((L1, memory_mb),))


def test_what_outgrows_its_reservation_is_stopped_at_the_second_look() -> None:
    machine = lifecycle(kill=True)
    assert machine.on_input(seen(5_000), 10) == []
    assert machine.on_input(seen(4_000), 20) == []  # it was of a moment
    assert machine.on_input(seen(5_000), 30) == []
    stop = StopOrder(lease_id=L1, grace_ms=7_000, cause=Outcome.OUT_OF_MEMORY)
    assert machine.on_input(seen(5_000), 40) == [StopRuns(orders=(stop,))]
    assert machine.on_input(seen(5_000), 50) == []  # once is enough


def test_a_task_that_an_agent_adopted_may_not_outgrow_its_reservation_either() -> None:
    machine = Lifecycle(grace_ms=7_000)
    run = KnownRun(lease_id=L1, task_id=TaskId(1), attempt=1, gpu_ids=(GPU,), started_at_ms=5, max_mb=4_096)
    machine.on_input(RunsListed(runs=(run,)), 10)
    assert machine.on_input(seen(5_000), 20) == []
    stop = StopOrder(lease_id=L1, grace_ms=7_000, cause=Outcome.OUT_OF_MEMORY)
    assert machine.on_input(seen(5_000), 30) == [StopRuns(orders=(stop,))]


@pytest.mark.parametrize(
    ("peak_mb", "exit_code", "outcome"),
    [(4_000, 1, Outcome.OUT_OF_MEMORY), (2_000, 1, Outcome.EXITED), (4_000, 0, Outcome.EXITED)],
    ids=["full", "not full", "ended well"],
)
def test_an_error_of_the_driver_in_full_memory_means_that_memory_ran_out(
    peak_mb: int, exit_code: int, outcome: Outcome
) -> None:
    machine = lifecycle(kill=False)
    machine.on_input(seen(peak_mb), 10)
    end = RunEnd(lease_id=L1, outcome=Outcome.EXITED, exit_code=exit_code, at_ms=50)
    machine.on_input(RunsEnded(ended=(end,)), 60)
    fault = ProgramFault(lease_id=L1, xid=31, card_mb=16_384)
    (report,) = machine.on_input(GpusReleased(released=((L1, ()),), faults=(fault,)), 70)
    told = report.finished[0].end
    assert told.outcome is outcome
    assert told.exit_code == exit_code
    if outcome is Outcome.OUT_OF_MEMORY:
        assert told.error == "Xid 31 of the driver while it held 4000 of 4096 MB"


def test_without_enforcement_it_goes_on() -> None:
    machine = lifecycle(kill=False)
    assert machine.on_input(seen(9_000), 10) == machine.on_input(seen(9_000), 20) == []


def test_the_peak_travels_with_the_end() -> None:
    machine = lifecycle(kill=False)
    for memory_mb in (1_000, 3_000, 2_000):
        machine.on_input(seen(memory_mb), 10)
    machine.on_input(RunsEnded(ended=(RunEnd(lease_id=L1, outcome=Outcome.EXITED, at_ms=50),)), 60)
    (report,) = machine.on_input(GpusReleased(released=((L1, ()),)), 70)
    assert report.finished[0].peak_memory_mb == 3_000


def test_a_card_with_one_lease_needs_no_telling_apart() -> None:
    sample = Sample(gpu_id=GPU, memory_used_mb=5_000, memory_foreign_mb=1_000)
    (found,) = with_leases([sample], {GPU: (L1,)}, {})
    assert found.leases_mb == ((L1, 4_000),)
    (found,) = with_leases([sample], {GPU: (L1, L2)}, {})
    assert found.leases_mb == ()


def test_processes_are_told_apart_by_their_owners() -> None:
    owners = {11: L1, 12: L2, 13: L1, 14: None, 15: LeaseId(9)}
    sample = Sample(gpu_id=GPU, own_mb=((11, 100), (12, 200), (13, 400), (14, 800), (15, 1_600), (16, 3_200)))
    (found,) = with_leases([sample], {GPU: (L1, L2)}, owners)
    assert found.leases_mb == ((L1, 500), (L2, 200))


def test_own_memory_leaves_out_what_the_driver_does_not_tell() -> None:
    pid = os.getpid()
    assert own_mb({pid: 10, pid + 1: None, pid + 2: 30}, frozenset({pid, pid + 1})) == ((pid, 10),)
