"""What a run has used so far: CPU time and memory from its processes, GPUs from samples."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dgpu.agent.reservations import Reservations
from dgpu.agent.run.runner import RunOrder
from dgpu.agent.run_meter import RunMeter, used_by
from dgpu.core.model.ids import LeaseId
from dgpu.wire.proto import agent_pb2 as pb

BURN = """
import subprocess, sys, time
held = bytearray(60 << 20)
while time.process_time() < 0.2: pass
if len(sys.argv) > 1:
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"], check=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def burner():
    """Ends when its input is closed."""
    started = []

    def start(*arguments: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", BURN, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        process.communicate("")


def test_cpu_time_counts_children_that_were_waited_for(burner) -> None:
    """A pipeline of short programs would look idle otherwise."""
    alone, with_child = used_by([burner()]), used_by([burner("child")])
    assert alone[0] >= 190
    assert with_child[0] >= alone[0] // 2 + 190
    assert alone[1] >= 60


def test_memory_is_that_of_the_largest_process_and_ended_processes_count_nothing(burner) -> None:
    pid = burner()
    assert used_by([pid, 2**22 + 1]) == used_by([pid])
    assert used_by([]) == (0, 0)


def test_a_run_is_measured_by_its_own_processes_and_samples(burner) -> None:
    lease, other = LeaseId(7), LeaseId(8)
    reservations = Reservations()
    reservations.look(RunOrder(lease_id=lease, task_id=1, attempt=1), 6_000)
    reservations.look(RunOrder(lease_id=lease, task_id=1, attempt=1), 5_000)
    reservations.note_use({lease}, [(lease, 80), (lease, 90)])
    pid = burner()
    meter = RunMeter(reservations, lambda: {pid: lease, 1: other, 2: None})
    told = meter.measure(lease)
    assert (told.gpu_samples, told.gpu_percent, told.gpu_percent_p95, told.gpu_peak_mb) == (2, 85, 90, 6_000)
    assert told.cpu_ms >= 190
    assert told.rss_mb >= 60
    assert RunMeter(Reservations(), dict).measure(lease) == pb.RunUsage()
    assert reservations.take(lease)[0] == 6_000, "measuring must not reset what the end reports"
