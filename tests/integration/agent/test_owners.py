"""The lease of a process, found by marks that it cannot forge. Real processes under a real keeper."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import MemorySeen, Ordered, Welcomed
from dgpu.agent.memory import with_leases
from dgpu.agent.owners import ProcessOwners
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunOrder, RunsListed, RunsStarted
from dgpu.agent.tree import Survey
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from integration.agent.keeping import Kept, wait_for

VICTIM, FORGER = LeaseId(7), LeaseId(8)
GPU = GpuId("GPU-a")

# Each writes the pid of a process that claims to be the neighbour's, and stays.
FORGED = "DGPU_LEASE_ID=7 sh -c 'echo $$ > PID; exec sleep 1000'"
CHILD = f"{FORGED} & wait"
DOUBLE_FORK = f"({FORGED} &); sleep 1000"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    keeper = Kept(tmp_path)
    yield keeper
    keeper.close()


class Watch:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._owners = ProcessOwners()

    def look(self) -> dict[int, LeaseId | None]:
        roots = {LeaseId(lease): pid for lease, pid in self._kept.roots.items()}
        return self._owners.look(
            Survey(), keeper_pid=self._kept.pid, keeper_id=self._kept.hello["keeper"], roots=roots
        )


def start(kept: Kept, lease: int, command: str) -> None:
    kept.spawn(lease, command)
    kept.wait_started(lease)


def pid_in(path: Path) -> int:
    return int(wait_for(lambda: path.exists() and path.read_text().strip()))


def is_orphan(kept: Kept, pid: int) -> bool:
    proc = Survey().procs.get(pid)
    return proc is not None and proc.ppid == kept.pid


@pytest.mark.parametrize("command", [CHILD, DOUBLE_FORK])
def test_a_forged_mark_books_nothing_on_the_neighbour(kept: Kept, tmp_path: Path, command: str) -> None:
    """And with enforcement, the neighbour is not stopped for it."""
    start(kept, VICTIM, "sleep 1000")
    start(kept, FORGER, command.replace("PID", f"{tmp_path}/pid"))
    pid = pid_in(tmp_path / "pid")
    owners = Watch(kept).look()
    assert owners[pid] == FORGER
    sample = Sample(gpu_id=GPU, memory_used_mb=9_000, own_mb=((pid, 9_000),))
    (found,) = with_leases([sample], {GPU: (VICTIM, FORGER)}, owners)
    assert found.leases_mb == ((FORGER, 9_000),)
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=()), 0)
    lifecycle.on_input(Welcomed(keep=frozenset()), 0)
    order = RunOrder(
        lease_id=VICTIM,
        task_id=TaskId(70),
        attempt=1,
        gpu_ids=(GPU,),
        gpu_memory_mb=4_000,
        share_milli=500,
        kill_outgrown=True,
    )
    lifecycle.on_input(Ordered(starts=(order,)), 1)
    lifecycle.on_input(RunsStarted(started=((VICTIM, 2),)), 2)
    for now_ms in (3, 4, 5):
        assert lifecycle.on_input(MemorySeen(leases_mb=found.leases_mb), now_ms) == []


def test_a_daemon_that_was_seen_before_it_left_is_still_its_tasks(kept: Kept, tmp_path: Path) -> None:
    """It takes a session of its own and loses its parent; its mark names the neighbour."""
    start(kept, VICTIM, "sleep 1000")
    daemon = f"DGPU_LEASE_ID=7 setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000'"
    middle = f"{daemon} & while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    start(
        kept, FORGER, f"sh -c '{middle.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' & sleep 1000"
    )
    pid = pid_in(tmp_path / "pid")
    watch = Watch(kept)
    assert watch.look()[pid] == FORGER
    (tmp_path / "go").touch()
    wait_for(lambda: is_orphan(kept, pid))
    assert watch.look()[pid] == FORGER
    assert watch.look()[pid] == FORGER


def test_a_daemon_that_no_look_has_seen_belongs_to_the_only_lease_old_enough(
    kept: Kept, tmp_path: Path
) -> None:
    daemon = f"(DGPU_LEASE_ID=7 setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' &)"
    start(kept, FORGER, f"{daemon}; sleep 1000")
    pid = pid_in(tmp_path / "pid")
    wait_for(lambda: is_orphan(kept, pid))
    watch = Watch(kept)
    watch.look()
    wait_for(lambda: Survey().procs[pid].start_ticks < _now_ticks())
    start(kept, VICTIM, "sleep 1000")
    assert watch.look()[pid] == FORGER
    assert Watch(kept).look()[pid] in {FORGER, None}


def test_a_daemon_that_several_leases_may_have_started_is_blamed_on_none(kept: Kept, tmp_path: Path) -> None:
    start(kept, VICTIM, "sleep 1000")
    daemon = f"(DGPU_LEASE_ID=7 setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' &)"
    start(kept, FORGER, f"{daemon}; sleep 1000")
    pid = pid_in(tmp_path / "pid")
    wait_for(lambda: is_orphan(kept, pid))
    assert Watch(kept).look()[pid] in {FORGER, None}


def _now_ticks() -> int:
    """Of a process that starts now."""
    with subprocess.Popen(["sleep", "10"]) as process:
        ticks = Survey().procs[process.pid].start_ticks
        process.kill()
    return ticks


def test_an_agent_that_comes_later_learns_the_first_process_of_each_lease(kept: Kept) -> None:
    start(kept, FORGER, "sleep 1000")
    told = dict(kept.roots)
    kept.disconnect()
    kept.connect_again()
    assert {FORGER: kept.known[FORGER]["pid"]} == told
