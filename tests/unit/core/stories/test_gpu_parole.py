"""The story of a GPU that dies at work, is put right, and earns its trust back."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass, task
from dgpu.core.commands import ObserveGpu, RecoverGpu, ReportCheck, ReportStarted, Tick
from dgpu.core.events import Event, GpuHealthChanged
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.model.ids import TaskId
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.state import ClusterState, gpu_status, next_tick_at

CARD = "GPU-n1-0"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


def steps(events: tuple[Event, ...]) -> list[tuple[str, str, str]]:
    return [
        (event.before.value, event.after.value, event.evidence)
        for event in events
        if isinstance(event, GpuHealthChanged)
    ]


def blockers(state: ClusterState, task_id: int) -> set[str]:
    told = explain(state, TaskId(task_id), state.last_at)
    assert isinstance(told, Explanation)
    return {blocker.code for blocker in told.blockers}


def test_a_dead_gpu_comes_back_by_parole() -> None:
    # One machine with one GPU. A training of three days runs on it.
    state = cluster(node("n1", gpus=1), task(command="python train.py"))
    assert run_pass(state) == [1]
    do(state, ReportStarted(lease_id=1))

    # The card falls off the bus. The training is told to stop, for nothing good can come of it.
    lost = "Xid 79: the card has fallen off the bus"
    events = do(state, ObserveGpu(gpu_id=CARD, foreign_mb=0, fault=lost, fault_cause="xid"))
    assert steps(events) == [("trusted", "quarantined", lost)]
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=9))
    training = state.tasks[1]
    assert (training.status, training.reason, training.retries) == (TaskStatus.PENDING, "gpu_fault", 1)

    # It waits, and can be told why: the only card is not in service, and counts as an error.
    at = training.eligible_at + SECOND
    assert run_pass(state, at=at) == []
    assert "gpu_health" in blockers(state, 1)
    assert gpu_status(state, state.gpus[CARD]) is GpuStatus.ERROR

    # Half a minute later the agent is asked to check it. The card is still dead, three times in all: a person is needed.
    for number in (1, 2, 3):
        at = next_tick_at(state) or 0
        assert steps(do(state, Tick(), at=at))[0][1] == "probing"
        failed = ReportCheck(gpu_id=CARD, number=number, ok=False, evidence="the card is lost")
        assert steps(do(state, failed)) == [("probing", "quarantined", "the card is lost")]
    ((_, after, evidence),) = steps(do(state, Tick(), at=next_tick_at(state) or 0))
    assert after == "out"
    assert evidence == "quarantined 4 times within 24 h, the last time: the card is lost"
    assert next_tick_at(state) is None

    # Two hours later somebody has pushed the card back into its slot, and says so.
    at = state.last_at + 2 * HOUR
    do(state, ObserveGpu(gpu_id=CARD, foreign_mb=0), at=at)
    assert steps(do(state, RecoverGpu(gpu_id=CARD, reason="reseated"))) == [("out", "probing", "reseated")]
    passed = ReportCheck(gpu_id=CARD, number=4, ok=True, evidence="64 MiB written and read back")
    assert steps(do(state, passed)) == [("probing", "parole", "64 MiB written and read back")]

    # The training has normal priority: it may not be the guinea pig. Two sweeps of low priority are.
    assert run_pass(state) == []
    assert "gpu_health" in blockers(state, 1)
    do(state, task(priority=10, command="python sweep.py", count=3))
    for lease_id, sweep in ((2, 2), (3, 3)):
        assert run_pass(state) == [sweep]
        do(state, finished(lease_id))
        assert state.health[CARD].good_runs == sweep - 1

    # The third good run ends the parole. Now the training goes on.
    assert run_pass(state) == [4]
    told = steps(do(state, finished(4)))
    assert told == [("parole", "trusted", "3 tasks in a row ended well on parole, the last task-4")]
    assert run_pass(state) == [1]
    do(state, finished(5))
    assert state.tasks[1].status is TaskStatus.SUCCESS


def test_without_work_of_low_priority_ten_quiet_minutes_do() -> None:
    state = cluster(node("n1", gpus=1), task())
    do(state, ObserveGpu(gpu_id=CARD, foreign_mb=0, fault="Xid 48: memory error", fault_cause="xid"))
    do(state, Tick(), at=next_tick_at(state))
    do(state, ReportCheck(gpu_id=CARD, number=1, ok=True, evidence="well"))
    do(state, ObserveGpu(gpu_id=CARD, foreign_mb=0))
    began_at = state.health[CARD].since
    assert next_tick_at(state) == began_at + 10 * MINUTE
    do(state, Tick(), at=began_at + 10 * MINUTE)
    assert run_pass(state) == [1]
